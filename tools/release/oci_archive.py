"""Read OCI archives of images, as `buildah push` writes them and registries store them."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

_WHITEOUT = ".wh."


@dataclass(frozen=True)
class Layer:
    """One layer of an image, with its sizes in bytes."""

    compressed: int
    """Compressed size of the layer, as in a registry."""
    unpacked: int
    """Total size of the layer's files."""


@dataclass(frozen=True)
class OciArchive:
    """An OCI archive with one image."""

    path: Path

    @property
    def digest(self) -> str:
        """Digest by which a registry identifies the image, with `sha256:`."""
        with tarfile.open(self.path) as archive:
            return str(_json(archive, "index.json")["manifests"][0]["digest"])

    def config(self) -> dict[str, Any]:
        """Return the image's configuration document."""
        with tarfile.open(self.path) as archive:
            return _blob(archive, _manifest(archive)["config"]["digest"])

    def manifest(self) -> dict[str, Any]:
        """Return the image's manifest, which lists its configuration and its layers."""
        with tarfile.open(self.path) as archive:
            return _manifest(archive)

    @contextmanager
    def open_blob(self, digest: str) -> Iterator[IO[bytes]]:
        """Open a layer or another blob for reading."""
        with tarfile.open(self.path) as archive:
            content = archive.extractfile(_blob_name(digest))
            assert content is not None
            yield content

    def layers(self) -> list[Layer]:
        """Return the layers, the base image's first. Read and decompress all of them."""
        with tarfile.open(self.path) as archive:
            return [
                Layer(entry["size"], sum(file.size for _, file in _files(archive, entry)))
                for entry in _manifest(archive)["layers"]
            ]

    def texts(self, *patterns: str) -> dict[str, str]:
        """Return the files of the image whose paths match one of the patterns, by path.

        Args:
            patterns: Patterns of `PurePath.match`, which a path matches from its right end.
        """
        found: dict[str, str] = {}
        with tarfile.open(self.path) as archive:
            for entry in _manifest(archive)["layers"]:
                for layer, file in _files(archive, entry):
                    path = PurePosixPath(file.name)
                    if path.name.startswith(_WHITEOUT):
                        found.pop(str(path.with_name(path.name.removeprefix(_WHITEOUT))), None)
                    elif any(path.match(pattern) for pattern in patterns):
                        content = layer.extractfile(file)
                        assert content is not None
                        found[str(path)] = content.read().decode()
        return found

    def unpack(self, folder: Path) -> None:
        """Write all files of the image to a folder. Keep their owners if the user is root."""
        with tarfile.open(self.path) as archive:
            for entry in _manifest(archive)["layers"]:
                with _open_layer(archive, entry) as layer:
                    layer.extractall(folder, filter="fully_trusted")  # noqa: S202 - built here


def _files(
    archive: tarfile.TarFile, entry: dict[str, Any]
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the regular files of a layer, each with the open layer archive."""
    with _open_layer(archive, entry) as layer:
        for file in layer:
            if file.isfile():
                yield layer, file


def _open_layer(archive: tarfile.TarFile, entry: dict[str, Any]) -> tarfile.TarFile:
    content = archive.extractfile(_blob_name(entry["digest"]))
    assert content is not None
    return tarfile.open(fileobj=content, mode="r|*")


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    return _blob(archive, _json(archive, "index.json")["manifests"][0]["digest"])


def _blob(archive: tarfile.TarFile, digest: str) -> dict[str, Any]:
    return _json(archive, _blob_name(digest))


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    content = archive.extractfile(name)
    assert content is not None
    return cast("dict[str, Any]", json.load(content))
