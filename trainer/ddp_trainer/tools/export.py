"""Export a checkpoint to files for other programs, and compare each file with the model."""

import contextlib
import inspect
import json
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import islice, starmap
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.format import (
    AVERAGE,
    MODEL,
    STATE,
    BrokenCheckpointError,
    UnreadableCheckpointError,
    names_in,
    read_json,
    write_json,
)
from ddp_trainer.checkpoint.snapshot import own_tensors, put_model
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.data.loader import collate_of, fetch
from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.errors import InputError
from ddp_trainer.task import Task, is_indexed

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Permitted difference of an output, because compilers change the order of sums."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES = 4
"""Number of samples with which the model is traced. The batch dimension stays dynamic, as do
dimensions in which one of the samples alone has another size, such as the length of a text."""


@dataclass(slots=True)
class ExportResult:
    """Exported files and their differences from the model."""

    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference of an output from that of the model, by file name."""
    failed: list[str] = field(default_factory=list)
    """Names of the files whose outputs differ by more than is permitted."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call of a model."""

    positional: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)

    def of(self, function: Callable[..., Any]) -> Any:
        """Call a function with these arguments, and return its result."""
        return function(*self.positional, **self.named)


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model and the arguments with which the loss calls it."""

    model: nn.Module
    call: CallArguments
    other_call: CallArguments
    """Arguments of one sample. All dimensions that differ are dynamic."""


def find_checkpoint(path: Path, sleep: Sleep = time.sleep) -> Path:
    """Return a checkpoint, or the newest complete checkpoint of a run's directory, without changes.

    Args:
        path: The checkpoint, or the run's directory.
        sleep: Function that waits between two tries to read.

    Raises:
        InputError: If there is no complete checkpoint, or the newest has an unknown format, or the
            process has no right to read it.
        VolumeError: If the volume fails. An older checkpoint would be a wrong result.
    """
    names = [path / str(name) for name in reversed(names_in(path)) if not name.suffix]
    reasons = []
    for candidate in names or [path]:
        try:
            retried(partial(verify_contents, candidate), sleep)
        except UnreadableCheckpointError as error:
            raise InputError(f"export: {candidate}: {error}") from error
        except (BrokenCheckpointError, NotADirectoryError) as error:
            reasons.append(f"{candidate.name}: {error}")
        except OSError as error:
            raise volume_error(f"export: cannot read {candidate}: {error}", error) from error
        else:
            return candidate
    raise InputError(f"export: {path} holds no complete checkpoint ({'; '.join(reasons)})")


def load_weights(model: nn.Module, checkpoint: Path, *, averaged: bool) -> bool:
    """Load a checkpoint's weights into a newly built model.

    Args:
        model: The model, which is changed in place.
        checkpoint: A complete checkpoint.
        averaged: Whether to prefer the moving average of the weights if there is one.

    Returns:
        Whether the moving average was loaded.
    """
    tensors = load_file(checkpoint / MODEL)
    average = checkpoint / AVERAGE
    use_average = averaged and average.is_file()
    if use_average:
        tensors |= load_file(average)
    put_model(model, tensors)
    return use_average


def trace(task: Task) -> TracedModel:
    """Compute the loss of a few samples to find the arguments with which it calls the model.

    Raises:
        InputError: If the loss does not call the model.
    """
    model = task.model.eval()
    call = _call(task, model, _samples(task, 0, EXAMPLES))
    alone = [
        _call(task, model, samples)
        for place in range(EXAMPLES)
        if len(samples := _samples(task, place, place + 1))
    ]
    # With padding, at least one sample is shorter than the batch, unless all have the same length.
    other = next((one for one in alone if _sizes(one) != _sizes(call)), alone[0])
    return TracedModel(model, call, other)


def _sizes(call: CallArguments) -> list[torch.Size]:
    """Return the shapes of all tensors without their first dimension."""
    return [tensor.shape[1:] for tensor in tensors_in((call.positional, call.named))]


def export(
    traced: TracedModel, formats: Iterable[str], folder: Path, metadata: dict[str, Any]
) -> ExportResult:
    """Write a model in each format together with `metadata.json`, and compare each file.

    The folder is created atomically. It is created even if a comparison fails, so that the user can
    inspect the files.

    Args:
        traced: The model.
        formats: Keys of `WRITERS`.
        folder: Output folder, which must not exist.
        metadata: First fields of `metadata.json`.

    Raises:
        InputError: If the folder exists, if the packages for a format are missing, or if a format
            needs a trace that torch cannot make of the model.
    """
    formats = list(formats)
    if "onnx" in formats and (missing := [p for p in ONNX_PACKAGES if find_spec(p) is None]):
        raise InputError(
            f"export: onnx needs {', '.join(missing)}: install the extra [onnx] of ddp-trainer, in"
            " a clone by pip install '.[onnx]'"
        )
    if folder.exists():
        raise InputError(f"export: {folder} already exists")
    pending = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(pending, ignore_errors=True)
    pending.mkdir(parents=True)
    try:
        result = _write(traced, formats, pending)
    except InputError:
        shutil.rmtree(pending)
        raise
    contents = {
        **metadata,
        **_inputs(traced),
        "largest_difference": result.differences,
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
    }
    write_json(pending / "metadata.json", contents)
    pending.rename(folder)
    return result


def _write(traced: TracedModel, formats: Iterable[str], folder: Path) -> ExportResult:
    """Write the model in each format, and compare the outputs of each file with the model's."""
    result = ExportResult()
    for name in formats:
        file, compute = WRITERS[name](traced, folder)
        for call in (traced.call, traced.other_call):
            largest, close = _compare(call.of(traced.model), call.of(compute))
            result.differences[file] = max(largest, result.differences.get(file, 0.0))
            if not close and file not in result.failed:
                result.failed.append(file)
    return result


def checkpoint_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's path, task, settings and position as metadata."""
    state = read_json(checkpoint / STATE)
    kept = {key: state[key] for key in ("task", "config", "step", "epoch", "samples")}
    return {"checkpoint": str(checkpoint), **kept}


Writer = Callable[[TracedModel, Path], tuple[str, Callable[..., Any]]]
"""Function that writes a file and returns its name and a function that computes with the file."""


def _safetensors(traced: TracedModel, folder: Path) -> tuple[str, Callable[..., Any]]:
    tensors = {n: t.detach().contiguous().clone() for n, t in own_tensors(traced.model).items()}
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    # Clone, because kernels can change the order of a sum with the memory alignment of a file.
    read = {name: tensor.clone() for name, tensor in load_file(folder / MODEL).items()}

    def compute(*arguments: Any, **named: Any) -> Any:
        # In place: torch's functional_call leaves another kind of tensor in a module that the
        # model lists twice.
        put_model(traced.model, read)
        try:
            return traced.model(*arguments, **named)
        finally:
            put_model(traced.model, tensors)

    return MODEL, compute


def _torch(traced: TracedModel, folder: Path) -> tuple[str, Callable[..., Any]]:
    file = "model.pt2"
    with _tracing():
        torch.export.save(_program(traced), folder / file)
        return file, torch.export.load(folder / file).module()


def _onnx(traced: TracedModel, folder: Path) -> tuple[str, Callable[..., Any]]:
    import onnxruntime  # noqa: PLC0415 - an optional dependency

    file = "model.onnx"
    with _tracing():
        program = torch.onnx.export(_program(traced), dynamo=True, verbose=False)
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    program.save(str(folder / file))
    session = onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def compute(*arguments: Any, **named: Any) -> Any:
        tensors = [value.numpy() for value in tensors_in((arguments, named))]
        outputs = session.run(None, dict(zip(names, tensors, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return file, compute


WRITERS: dict[str, Writer] = {"safetensors": _safetensors, "torch": _torch, "onnx": _onnx}


def _program(traced: TracedModel) -> torch.export.ExportedProgram:
    """Return the exported graph, in which the dimensions that differ between calls are dynamic."""
    model, call = traced.model, traced.call
    bind = inspect.signature(model.forward).bind
    shapes = _dynamic(call.of(bind).arguments, traced.other_call.of(bind).arguments)
    return torch.export.export(model, call.positional, call.named, dynamic_shapes=shapes)


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    """Raise an InputError in place of any error of torch.export."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise InputError(
            f"export: torch.export cannot trace the model{_place(error)}, {reason};"
            " --formats=safetensors needs no trace"
        ) from error


def _place(error: BaseException) -> str:
    """Return the newest line of the task that an error came from, for a sentence."""
    others = (str(Path(torch.__file__).parent), __file__, contextlib.__file__, "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _dynamic(value: Any, other: Any) -> Any:
    """Return the dimensions of an argument that torch must leave open, as torch.export takes them.

    Args:
        value: An argument of the traced call, or a part of it.
        other: The same in the other call.
    """
    if isinstance(value, Tensor):
        return dict.fromkeys(_open_dimensions(value, other), torch.export.Dim.DYNAMIC) or None
    if isinstance(value, Mapping):
        return {key: _dynamic(item, other[key]) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(starmap(_dynamic, zip(value, other, strict=True)))
    return None


def _open_dimensions(value: Tensor, other: Tensor) -> list[int]:
    """Return the batch dimension, and those in which two tensors differ."""
    return [
        place
        for place, (size, size_alone) in enumerate(zip(value.shape, other.shape, strict=True))
        if place == 0 or size != size_alone
    ]


def _samples(task: Task, first: int, end: int) -> Any:
    """Return some samples, as far as there are any, in the form that the task's `collate` takes."""
    data = task.train_data if task.eval_data is None else task.eval_data
    if is_indexed(data):
        return fetch(data, range(len(data))[first:end])
    return list(islice(cast("Iterable[Any]", data), first, end))


def _call(task: Task, model: nn.Module, samples: Any) -> CallArguments:
    """Return the arguments with which the loss calls the model."""
    calls: list[CallArguments] = []

    def record(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append(CallArguments(arguments, named))

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with torch.no_grad():
            task.loss(model, collate_of(task)(samples))
    finally:
        handle.remove()
    if not calls:
        raise InputError(
            "export: the loss must call the model itself, because its input is unknown otherwise"
        )
    return calls[0]


def _compare(expected: Any, got: Any) -> tuple[float, bool]:
    """Return the largest difference, and whether all outputs are close enough."""
    pairs = list(zip(tensors_in(expected), tensors_in(got), strict=True))
    largest = max((float((a - b).detach().abs().max()) for a, b in pairs), default=0.0)
    close = all(torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE) for a, b in pairs)
    return largest, close and bool(pairs)


def _inputs(traced: TracedModel) -> dict[str, Any]:
    """Return the inputs of the model as fields of the metadata."""
    call, other = traced.call, traced.other_call
    return {
        "inputs": list(starmap(_describe, zip(call.positional, other.positional, strict=True))),
        "named_inputs": {key: _describe(call.named[key], other.named[key]) for key in call.named},
    }


def _describe(value: Any, other: Any) -> Any:
    if not isinstance(value, Tensor):
        return json.loads(json.dumps(value, default=repr))
    shape: list[int | str] = list(value.shape)
    for place in _open_dimensions(value, other):
        shape[place] = "any" if place else "batch"
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
