"""Load a job from a file and apply `--set`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ddp_operator.api.base import KIND
from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.cluster.base import Manifest


def load_manifest(path: Path, settings: Sequence[str]) -> Manifest:
    """Return the only DDPJob of a file, with the settings applied to its spec.

    Raises:
        InvalidJobError: The file holds no valid DDPJob, or a setting is invalid.
    """
    manifest = _read(path)
    for setting in settings:
        _apply(manifest, setting)
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        metadata.setdefault("namespace", "default")
    try:
        parse_job(manifest)
    except InvalidJobError as error:
        raise InvalidJobError(f"{path}: {error}") from error
    return manifest


def load_config_maps(path: Path) -> dict[str, dict[str, str]]:
    """Return the ConfigMaps of a job's file: text by file name, by ConfigMap name.

    Raises:
        InvalidJobError: The file cannot be read.
    """
    config_maps = {}
    for document in _documents(path):
        if document.get("kind") == "ConfigMap":
            files = (document.get("data") or {}).items()
            config_maps[document["metadata"]["name"]] = {
                str(name): str(text) for name, text in files
            }
    return config_maps


def _read(path: Path) -> Manifest:
    jobs = [document for document in _documents(path) if document.get("kind") == KIND]
    if len(jobs) != 1:
        raise InvalidJobError(f"{path}: must hold exactly one {KIND}, got {len(jobs)}")
    return jobs[0]


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidJobError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidJobError(f"{path}: must be text in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidJobError(f"{path}: must be YAML: {_yaml_problem(error)}") from error
    return [document for document in documents if isinstance(document, dict)]


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _apply(manifest: Manifest, setting: str) -> None:
    """Set the field `a.b` of the spec to a YAML value, for a setting `a.b=value`."""
    path, separator, text = setting.partition("=")
    if not separator or not path:
        raise InvalidJobError(f"--set: must be KEY=VALUE, got {setting!r}")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
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
