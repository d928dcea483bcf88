"""Build paths from names in a manifest, which must not lead out of the folder of a local run."""

from pathlib import Path, PurePosixPath

from ddp_operator.cluster.base import ClusterError


def inside(folder: Path, name: str, field: str) -> Path:
    """Return the path of a file or folder by its name in a manifest.

    Args:
        folder: Folder that the path must not leave.
        name: A relative path, or "" for the folder itself.
        field: Field of the manifest that contains the name, for the error message.

    Raises:
        ClusterError: The name leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ClusterError(f"{field}: must be a relative path without '..', got {name!r}")
    return folder / path
