"""Ship the code of a folder with a job, as one ConfigMap."""

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_operator.builders.names import code_map_name
from ddp_operator.client.errors import RequestError

MOST_BYTES = 1_000_000
"""Maximum size of all files together, in bytes. The API server accepts ConfigMaps of 1 MiB."""
MOST_FILES = 500
"""Maximum number of files."""
MOUNT_PATH = "/code"
"""Path of the folder in the pods."""
_VOLUME = "code"
_SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "ddp-runs"})
"""Names of folders that are never shipped. Hidden files and folders are not shipped either."""
_PATH_VARIABLE = "PYTHONPATH"


@dataclass(frozen=True)
class Code:
    """The files of a folder."""

    files: Mapping[str, bytes]
    """Content of each file, by its path relative to the folder."""

    @property
    def hash(self) -> str:
        """Return a hash of all paths and contents, as 12 hexadecimal digits."""
        digest = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            digest.update(f"{len(path)} {path} {len(content)} ".encode() + content)
        return digest.hexdigest()[:12]

    def name(self, job: str) -> str:
        """Return the name of the ConfigMap of a job with this code."""
        return code_map_name(job, self.hash)

    def config_map(self, job: str) -> dict[str, Any]:
        """Return the ConfigMap. Each key names one file."""
        text, binary = dict[str, str](), dict[str, str]()
        for path, key in self._keys().items():
            content = self.files[path]
            try:
                text[key] = content.decode("utf-8")
            except UnicodeDecodeError:
                binary[key] = base64.b64encode(content).decode()
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name(job)},
            "immutable": True,
            "data": text,
            **({"binaryData": binary} if binary else {}),
        }

    def mounted(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job with the code at `/code`, which Python also searches for modules.

        Raises:
            RequestError: The job has a volume or a mount of that name already.
        """
        spec = dict(manifest["spec"])
        volumes, mounts = list(spec.get("volumes") or []), list(spec.get("volumeMounts") or [])
        taken = {one.get("name") for one in volumes} | {one.get("mountPath") for one in mounts}
        if taken & {_VOLUME, MOUNT_PATH}:
            sentence = f"--code: the job must not have a volume {_VOLUME!r} or a mount at"
            raise RequestError(f"{sentence} {MOUNT_PATH} of its own")
        items = [{"key": key, "path": path} for path, key in self._keys().items()]
        source = {"name": self.name(manifest["metadata"]["name"]), "items": items}
        spec["volumes"] = [*volumes, {"name": _VOLUME, "configMap": source}]
        mount = {"name": _VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
        spec["volumeMounts"] = [*mounts, mount]
        spec["env"] = _with_path(list(spec.get("env") or []))
        return {**manifest, "spec": spec}

    def _keys(self) -> dict[str, str]:
        """Return the key of each path. Keys of a ConfigMap must not contain a slash."""
        return {path: f"file-{number:03}" for number, path in enumerate(sorted(self.files))}


def read_code(folder: Path) -> Code:
    """Return the files of a folder.

    Raises:
        RequestError: The folder cannot be read, is empty or is too large.
    """
    if not folder.is_dir():
        raise RequestError(f"--code: must be a folder, got {folder}")
    files: dict[str, bytes] = {}
    left = MOST_BYTES
    try:
        for path in _paths(folder):
            size = path.stat().st_size
            left -= size
            if left < 0 or len(files) >= MOST_FILES:
                raise RequestError(
                    f"--code: {folder} must have at most {MOST_FILES} files and"
                    f" {MOST_BYTES:,} bytes; {path.relative_to(folder)} exceeds that. Put data on a"
                    " volume, and large code into the image"
                )
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    except OSError as error:
        raise RequestError(f"--code: {error.filename}: cannot be read: {error.strerror}") from error
    if not files:
        raise RequestError(f"--code: {folder} has no files to ship")
    return Code(files)


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the files to ship. Links are skipped, because they may lead out of the folder."""
    for home, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if _is_shipped(one))
        for name in sorted(names):
            path = Path(home) / name
            if _is_shipped(name) and path.is_file() and not path.is_symlink():
                yield path


def _is_shipped(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED and not name.endswith(".pyc")


def _with_path(env: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the variables with `/code` first in PYTHONPATH."""
    for index, one in enumerate(env):
        if one.get("name") == _PATH_VARIABLE and one.get("value"):
            env[index] = {**one, "value": f"{MOUNT_PATH}:{one['value']}"}
            return env
    return [*env, {"name": _PATH_VARIABLE, "value": MOUNT_PATH}]
