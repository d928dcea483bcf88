"""Load a job from a file and apply the options `--set`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddp_operator.api.base import KIND
from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.builders.loop_config import config_error
from ddp_operator.client.bounded_yaml import FILE_BYTES, documents

Manifest = dict[str, Any]
STANDARD_INPUT = "-"
"""File name that stands for standard input, as with kubectl."""
_KIND_CHARACTERS = 80


@dataclass(frozen=True)
class JobFile:
    """The objects of a job's file."""

    name: str
    """Name of the file, for error messages."""
    objects: Sequence[Any]

    def manifest(self, settings: Sequence[str] = ()) -> Manifest:
        """Return the only DDPJob of the file, with the settings applied to its spec.

        Raises:
            InvalidJobError: The file holds no valid DDPJob, or a setting is invalid.
        """
        jobs = [one for one in self.objects if _kind(one) == KIND]
        if len(jobs) != 1:
            raise InvalidJobError(
                f"{self.name}: must hold exactly one {KIND}, got {len(jobs)}{self._others(jobs)}"
            )
        manifest: Manifest = jobs[0]
        for setting in settings:
            _apply(manifest, setting)
        metadata = manifest.get("metadata")
        if isinstance(metadata, dict):
            metadata.setdefault("namespace", "default")
        try:
            parse_job(manifest)
        except InvalidJobError as error:
            raise InvalidJobError(f"{self.name}: {error}") from error
        return manifest

    def names_namespace(self) -> bool:
        """Return whether a DDPJob of the file names its namespace."""
        metadata = [one.get("metadata") for one in self.objects if _kind(one) == KIND]
        return any(isinstance(one, dict) and one.get("namespace") for one in metadata)

    def checked(self, settings: Sequence[str] = ()) -> Manifest:
        """Return the DDPJob of the file after all checks that need no cluster.

        These are the rules of the CRD and, for the default image, the settings of the bundled loop.

        Raises:
            InvalidJobError: The file holds no valid DDPJob, or a setting is invalid.
        """
        manifest = self.manifest(settings)
        job = parse_job(manifest)
        # Another image may contain another version of the loop.
        sentence = config_error(job) if job.spec.image is None else None
        if sentence is not None:
            raise InvalidJobError(f"{self.name}: {sentence}")
        return manifest

    def config_map_objects(self) -> list[Manifest]:
        """Return the ConfigMaps of the file as objects.

        Raises:
            InvalidJobError: A ConfigMap has no name, or its data is not an object.
        """
        self.config_maps()
        return [one for one in self.objects if _kind(one) == "ConfigMap"]

    def config_maps(self) -> dict[str, dict[str, str]]:
        """Return the ConfigMaps of the file: text by file name, by ConfigMap name.

        Raises:
            InvalidJobError: A ConfigMap has no name, or its data is not an object.
        """
        found = {}
        for one in self.objects:
            if _kind(one) == "ConfigMap":
                metadata, data = one.get("metadata"), one.get("data") or {}
                name = metadata.get("name") if isinstance(metadata, dict) else None
                if not isinstance(name, str) or not isinstance(data, dict):
                    sentence = "a ConfigMap must have metadata.name, and its data must be an object"
                    raise InvalidJobError(f"{self.name}: {sentence}")
                found[name] = {str(key): str(text) for key, text in data.items()}
        return found

    def _others(self, jobs: Sequence[Any]) -> str:
        """Return a hint that names the other kinds in a file without a DDPJob."""
        if jobs:
            return ""
        kinds = dict.fromkeys(_kind(one) for one in self.objects if one is not None)
        return f", found {', '.join(kinds)}" if kinds else ", found nothing"


def read_job_file(path: Path) -> JobFile:
    """Return the objects of a file, or those of standard input for the path `-`.

    Raises:
        InvalidJobError: The file cannot be read.
    """
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    try:
        data = _read(path)
        found = documents(data.decode("utf-8")) if len(data) <= FILE_BYTES else None
    except OSError as error:
        raise InvalidJobError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidJobError(f"{name}: must be text in UTF-8") from error
    except yaml.YAMLError as error:
        raise InvalidJobError(f"{name}: must be YAML: {_yaml_problem(error)}") from error
    if found is None:
        raise InvalidJobError(f"{name}: must have at most {FILE_BYTES >> 20} MiB")
    return JobFile(name, found)


def _read(path: Path) -> bytes:
    """Return the content of a file. Stop reading slightly above the size limit."""
    if str(path) == STANDARD_INPUT:
        return sys.stdin.buffer.read(FILE_BYTES + 1)
    with path.open("rb") as file:
        return file.read(FILE_BYTES + 1)


def _kind(document: Any) -> str:
    """Return the kind of an object, or its type if the value is not an object."""
    if isinstance(document, list):
        return "a list"
    if not isinstance(document, dict):
        return "text" if isinstance(document, str) else "a value"
    kind = document.get("kind")
    return kind[:_KIND_CHARACTERS] if isinstance(kind, str) else "an object without kind"


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _apply(manifest: Manifest, setting: str) -> None:
    """Set the field `a.b` of the spec to a YAML value, as the option `--set a.b=value` demands."""
    path, separator, text = setting.partition("=")
    if not separator or not path:
        raise InvalidJobError(f"--set: must be KEY=VALUE, got {setting!r}")
    try:
        (value,) = documents(text) or [None]
    except (yaml.YAMLError, ValueError) as error:  # Or there are several documents.
        raise InvalidJobError(f"--set {path}: must be a YAML value, got {text!r}") from error
    if manifest.get("spec") is None:
        manifest["spec"] = {}
    target: Any = manifest["spec"]
    *parents, last = path.split(".")
    for parent in parents:
        target = target.setdefault(parent, {}) if isinstance(target, dict) else None
    if not isinstance(target, dict):
        raise InvalidJobError(f"--set {path}: spec.{'.'.join(parents)} must be an object")
    target[last] = value
