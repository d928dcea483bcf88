"""Write the manifest of a new job from a script or a task."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ddp_operator.client.bounded_yaml import documents
from ddp_operator.client.code import MOUNT_PATH
from ddp_operator.client.errors import RequestError
from ddp_operator.client.manifest import JobFile

_TASK = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DISTRIBUTED = re.compile(
    r"init_process_group|DistributedDataParallel|Accelerator|Trainer\(|fsdp", re.IGNORECASE
)
"""Pattern of calls by which a script trains on several ranks."""
_REPORTS = re.compile(r"ddp_trainer|DDP_CHECKPOINT_DIR")
"""Pattern of the ways in which a script finds its checkpoint directory."""
_PLAIN = re.compile(r"[A-Za-z/][-A-Za-z0-9_./]*")
"""Pattern of texts that need no quotes in YAML, unless they are words such as `true`."""
_LONGEST_NAME = 50
_SCRIPT_BYTES = 1 << 20


@dataclass(frozen=True)
class JobSize:
    """Size of a job."""

    nodes: int
    gpus: int
    """GPUs of each node. 0 selects CPUs."""
    procs: int | None
    """Ranks of each node. None selects one for each GPU, or one."""


@dataclass(frozen=True)
class NewJob:
    """The manifest of a new job."""

    text: str
    notes: list[str]
    """What the user should know about it, as sentences."""


def write_manifest(
    target: str, size: JobSize, *, name: str | None, claim: str | None, folder: Path
) -> NewJob:
    """Return the manifest of a job that runs a script or a task.

    Args:
        target: Path of a Python script below `folder`, or `module:function` of a task.
        size: JobSize of the job.
        name: Name of the job. None derives it from the target.
        claim: Name of the claim for checkpoints. None lets the operator create one.
        folder: Folder with the code.

    Raises:
        RequestError: The target is neither a script in the folder nor a task.
        InvalidJobError: The name or the claim is invalid.
    """
    if _TASK.fullmatch(target):
        words, notes, saves = [f"task: {target}"], _task_notes(target, folder), True
    else:
        text = _read_script(target, folder)
        path = f"{MOUNT_PATH}/{Path(target).as_posix()}"
        words, saves = [f"command: [python, {_quoted(path)}]"], bool(_REPORTS.search(text))
        notes = [f"ship the script with it: ddpjob submit FILE --code {folder}"]
        if not _DISTRIBUTED.search(text):
            notes.append(
                f"{target} calls none of the usual functions of distributed training: each rank"
                " may train the whole model on its own"
            )
        if not saves:
            notes.append(
                f"{target} does not use DDP_CHECKPOINT_DIR: each attempt starts from the beginning"
            )
    lines = [*_size_lines(size), *words]
    if _TASK.fullmatch(target):
        lines.append("config: {epochs: 1, global_batch: 64}   # `ddp-trainer` has more settings")
    if saves:
        place = "claimTemplate: {size: 10Gi}" if claim is None else f"claimName: {_quoted(claim)}"
        lines.append(f"checkpoint: {{{place}}}")
    body = "".join(f"  {line}\n" for line in lines)
    chosen = name if name is not None else _name_of(target)
    made = (
        "apiVersion: ddp-trainer.dev/v1alpha1\nkind: DDPJob\n"
        f"metadata: {{name: {_quoted(chosen)}}}\nspec:\n{body}"
    )
    JobFile("the new job", documents(made)).checked()
    return NewJob(made, notes)


def _quoted(text: str) -> str:
    """Return a text as YAML, in quotes if YAML would read it as something else."""
    plain = _PLAIN.fullmatch(text) and documents(text) == [text]
    return text if plain else json.dumps(text)


def _size_lines(size: JobSize) -> list[str]:
    lines = [f"nodes: {size.nodes}"]
    lines += [f"gpusPerNode: {size.gpus}"] if size.gpus else []
    if size.procs is not None or not size.gpus:
        lines.append(f"procsPerNode: {size.procs or 1}")
    return lines


def _task_notes(target: str, folder: Path) -> list[str]:
    """Return how the module of a task reaches the pods."""
    module = target.partition(":")[0]
    relative = Path(*module.split("."))
    here = [folder / relative.with_suffix(".py"), folder / relative / "__init__.py"]
    if any(path.is_file() for path in here):
        return [f"ship the module with it: ddpjob submit FILE --code {folder}"]
    if module.startswith("ddp_trainer."):
        return []
    return [f"{module} is not in {folder}: the image must have it"]


def _read_script(target: str, folder: Path) -> str:
    path = folder / target
    relative = not Path(target).is_absolute() and ".." not in Path(target).parts
    if not target.endswith(".py") or not relative:
        sentence = "must be a Python script in the folder of the code, or a task as module:function"
        raise RequestError(f"{target}: {sentence}")
    try:
        with path.open("rb") as file:
            return file.read(_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error


def _name_of(target: str) -> str:
    """Return a valid name of a job from the name of a script or a module."""
    last = target.partition(":")[0].rpartition(".")[2] if ":" in target else Path(target).stem
    words = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")
    return (words if words[:1].isalpha() else f"job-{words}")[:_LONGEST_NAME].strip("-")
