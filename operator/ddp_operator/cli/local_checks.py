"""Prepare a local run: drop the fields for clusters, and refuse a run that must fail."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ddp_operator.api.container import EnvVar
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.builders.loop_config import config_error
from ddp_operator.cluster.base import Manifest

_PYTHON = ("python", "python3")


def without_cluster_fields(manifest: Manifest) -> Manifest:
    """Return the job without the fields whose values are valid only in a cluster.

    A local run has no other controller that could manage the job. Its ranks use loopback addresses,
    for which hostNetwork has no meaning, and NCCL would not find the devices of a network profile.
    """
    spec = {key: value for key, value in manifest["spec"].items() if key != "managedBy"}
    if isinstance(spec.get("network"), Mapping):
        spec["network"] = {
            k: v for k, v in spec["network"].items() if k not in {"profile", "hostNetwork"}
        }
    return {**manifest, "spec": spec}


def check_program(job: DDPJob, environment: Mapping[str, str]) -> None:
    """Check the settings of the bundled loop, and that the programs of all commands exist.

    Raises:
        InvalidJobError: A setting is wrong, or a file is missing.
    """
    if (sentence := config_error(job)) is not None:
        raise InvalidJobError(sentence)
    spec = job.spec
    for step in spec.init or []:
        if step.command is not None:
            words = [*step.command, *(step.args or [])]
            _check_command(spec, f"spec.init: {step.name}", words, step.env, environment)
    if spec.command is not None and spec.pod_template is None:
        words = [*spec.command, *(spec.args or [])]
        _check_command(spec, "spec.command", words, None, environment)


def _check_command(
    spec: DDPJobSpec,
    field: str,
    words: Sequence[str],
    more: Sequence[EnvVar] | None,
    environment: Mapping[str, str],
) -> None:
    """Check that the program and the script of a command exist. `more` are its own variables."""
    if "PATH" in {variable.name for variable in [*(spec.env or []), *(more or [])]}:
        return
    program, *arguments = words
    mounts = [mount.mount_path for mount in spec.volume_mounts or []]
    if _is_below(program, mounts) or "$(" in program:
        return
    if program not in _PYTHON and shutil.which(program, path=environment.get("PATH")) is None:
        raise InvalidJobError(f"{field}: there is no program {program!r} on this machine")
    script = arguments[0] if arguments else ""
    if Path(program).name not in _PYTHON or not script.endswith(".py") or "$(" in script:
        return
    if not _is_below(script, mounts) and not Path(script).is_file():
        raise InvalidJobError(
            f"{field}: there is no script {script!r} on this machine (in {Path.cwd()})"
        )


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
