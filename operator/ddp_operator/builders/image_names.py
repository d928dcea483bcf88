"""Parse names of container images."""

import re

_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
_DOCKER_HUB = {"docker.io", "index.docker.io"}


def has_digest(image: str) -> bool:
    """Return whether an image name contains a digest, which fixes the content."""
    return _DIGEST.search(image) is not None


def image_by_digest(image: str, image_id: str) -> str | None:
    """Return a container's image with the digest of its running image, or None if unknown.

    Runtimes report an image that they have pulled as `repository@digest`. An image that was
    imported on the Kubernetes node has only a local id or the name of another repository, which no
    registry can serve.

    Args:
        image: Image of the container's spec: `repository:tag` or `repository@digest`.
        image_id: `imageID` of the container's status.
    """
    stated = _DIGEST.search(image)
    if stated is not None:
        return f"{_without_tag(image)}@{stated[1]}"
    pulled = _DIGEST.search(image_id)
    if pulled is None or repository(image) != repository(image_id):
        return None
    return f"{_without_tag(image)}@{pulled[1]}"


def repository(image: str) -> str:
    """Return the full name of an image's repository, without tag and digest."""
    registry, _, path = _without_tag(image).partition("/")
    if not path:
        return f"docker.io/library/{registry}"
    if registry in _DOCKER_HUB:
        return f"docker.io/{path}" if "/" in path else f"docker.io/library/{path}"
    if "." in registry or ":" in registry or registry == "localhost":
        return f"{registry}/{path}"
    return f"docker.io/{registry}/{path}"


def _without_tag(image: str) -> str:
    name = image.removeprefix("docker-pullable://").partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]
