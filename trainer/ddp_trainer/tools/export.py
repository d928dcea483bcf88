"""From a checkpoint to files that other programs load, each compared with the model itself."""

import json
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    MODEL,
    STATE,
    BrokenCheckpointError,
    check_whole,
    names_in,
    read_json,
    write_json,
)
from ddp_trainer.checkpoint.snapshot import own_tensors, put_model
from ddp_trainer.data.loader import collate_of, fetch
from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.errors import InputError
from ddp_trainer.task import Task, is_indexed

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Largest difference of an output: compilers order sums in other ways."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES = 4
"""Samples that are traced; the batch stays free."""


@dataclass(slots=True)
class Exported:
    """What was written, and how it compares."""

    differences: dict[str, float] = field(default_factory=dict)
    """By file: the largest difference of an output from the model's own."""
    failed: list[str] = field(default_factory=list)
    """Files whose outputs differ by more than they may."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A model with what it is called with."""

    model: nn.Module
    inputs: tuple[Any, ...]
    others: tuple[Any, ...]
    """Inputs of another batch size, for the comparison."""


def find_checkpoint(path: Path) -> Path:
    """A checkpoint, or the newest whole one of a run's directory; nothing is changed there.

    Raises:
        InputError: If there is none.
    """
    names = [path / str(name) for name in reversed(names_in(path)) if not name.suffix]
    reasons = []
    for candidate in names or [path]:
        try:
            check_whole(candidate)
        except (BrokenCheckpointError, OSError) as error:
            reasons.append(f"{candidate.name}: {error}")
        else:
            return candidate
    raise InputError(f"export: {path} holds no whole checkpoint ({'; '.join(reasons)})")


def load_weights(model: nn.Module, checkpoint: Path, *, averaged: bool) -> bool:
    """Loads a checkpoint's weights into a model that was just built.

    Args:
        model: Changed in place.
        checkpoint: Whole.
        averaged: Whether to take the moving average where there is one.

    Returns:
        Whether it was taken.
    """
    tensors = load_file(checkpoint / MODEL)
    average = checkpoint / AVERAGE
    taken = averaged and average.is_file()
    if taken:
        tensors |= load_file(average)
    put_model(model, tensors)
    return taken


def trace(task: Task) -> Traced:
    """Finds what the model is called with, by computing the loss of a few samples.

    Raises:
        InputError: If the loss does not call the model, or with more than positional arguments.
    """
    model = task.model.eval()
    inputs, others = (_arguments(task, model, _samples(task, count)) for count in (EXAMPLES, 1))
    return Traced(model, inputs, others)


def export(
    traced: Traced, formats: Iterable[str], folder: Path, metadata: dict[str, Any]
) -> Exported:
    """Writes a model in each format, with `metadata.json`, and compares each to the model.

    The folder appears as a whole, even when a comparison failed, so that it can be looked at.

    Args:
        traced: The model.
        formats: Of `WRITERS`.
        folder: Must not exist.
        metadata: JSON to begin with.

    Raises:
        InputError: If the folder exists, or the packages for a format are missing.
    """
    formats = list(formats)
    if "onnx" in formats and (missing := [p for p in ONNX_PACKAGES if find_spec(p) is None]):
        raise InputError(
            f"export: onnx needs {', '.join(missing)}: pip install 'ddp-trainer[onnx]'"
        )
    if folder.exists():
        raise InputError(f"export: {folder} exists already")
    pending = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(pending, ignore_errors=True)
    pending.mkdir(parents=True)
    found = Exported()
    for name in formats:
        file, compute = WRITERS[name](traced, pending)
        for arguments in (traced.inputs, traced.others):
            worst, alike = _compare(traced.model(*arguments), compute(*arguments))
            found.differences[file] = max(worst, found.differences.get(file, 0.0))
            if not alike and file not in found.failed:
                found.failed.append(file)
    described = {
        **metadata,
        "inputs": [_described(value) for value in traced.inputs],
        "largest_difference": found.differences,
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
    }
    write_json(pending / "metadata.json", described)
    pending.rename(folder)
    return found


def origin(checkpoint: Path) -> dict[str, Any]:
    """Where weights come from, as metadata."""
    state = read_json(checkpoint / STATE)
    kept = {key: state[key] for key in ("task", "config", "step", "epoch", "samples")}
    return {"checkpoint": str(checkpoint), **kept}


Writer = Callable[[Traced, Path], tuple[str, Callable[..., Any]]]
"""Writes a file, and gives its name and a way to compute with what stands in it."""


def _safetensors(traced: Traced, folder: Path) -> tuple[str, Callable[..., Any]]:
    tensors = {n: t.detach().contiguous().clone() for n, t in own_tensors(traced.model).items()}
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    # Copied, since kernels add in another order where memory is aligned as it happens in a file.
    read = {name: tensor.clone() for name, tensor in load_file(folder / MODEL).items()}

    def compute(*arguments: Any) -> Any:
        own = dict(traced.model.state_dict())
        twins = {key: read[name] for key in own for name in read if key == name}
        return torch.func.functional_call(traced.model, twins, arguments, tie_weights=True)

    return MODEL, compute


def _torch(traced: Traced, folder: Path) -> tuple[str, Callable[..., Any]]:
    file = "model.pt2"
    torch.export.save(_program(traced), folder / file)
    return file, torch.export.load(folder / file).module()


def _onnx(traced: Traced, folder: Path) -> tuple[str, Callable[..., Any]]:
    import onnxruntime  # noqa: PLC0415 (an extra)

    file = "model.onnx"
    program = torch.onnx.export(_program(traced), dynamo=True, verbose=False)
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    program.save(str(folder / file))
    session = onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def compute(*arguments: Any) -> Any:
        tensors = [value.numpy() for value in tensors_in(arguments)]
        outputs = session.run(None, dict(zip(names, tensors, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return file, compute


WRITERS: dict[str, Writer] = {"safetensors": _safetensors, "torch": _torch, "onnx": _onnx}


def _program(traced: Traced) -> torch.export.ExportedProgram:
    """The traced graph, with the first dimension free wherever the model leaves it free."""
    shapes = _free_batch(traced.inputs)
    return torch.export.export(traced.model, traced.inputs, dynamic_shapes=shapes)


def _free_batch(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {0: torch.export.Dim.DYNAMIC} if value.dim() else None
    if isinstance(value, Mapping):
        return {key: _free_batch(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_free_batch(item) for item in value)
    return None


def _samples(task: Task, count: int) -> Any:
    """So many, or fewer if there are no more, as the task's `collate` takes them."""
    data = task.train_data if task.eval_data is None else task.eval_data
    if is_indexed(data):
        return fetch(data, range(min(count, len(data))))
    return list(islice(cast("Iterable[Any]", data), count))


def _arguments(task: Task, model: nn.Module, samples: Any) -> tuple[Any, ...]:
    """What the loss calls the model with."""
    seen: list[tuple[Any, ...]] = []

    def note(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named:
            raise InputError(f'export: the model is called with "{min(named)}=", not by position')
        seen.append(arguments)

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            task.loss(model, collate_of(task)(samples))
    finally:
        handle.remove()
    if not seen:
        raise InputError("export: the loss does not call the model itself, so its input is unknown")
    return seen[0]


def _compare(expected: Any, got: Any) -> tuple[float, bool]:
    """Largest difference, and whether all outputs are near enough."""
    pairs = list(zip(tensors_in(expected), tensors_in(got), strict=True))
    worst = max((float((a - b).detach().abs().max()) for a, b in pairs), default=0.0)
    alike = all(torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE) for a, b in pairs)
    return worst, alike and bool(pairs)


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        shape = ["batch", *value.shape[1:]] if value.dim() else []
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
    return json.loads(json.dumps(value, default=repr))
