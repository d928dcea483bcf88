"""Writers of the export formats. Each saves a model and can compute with the saved file."""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddp_trainer.checkpoint.format import MODEL
from ddp_trainer.checkpoint.snapshot import own_tensors, put_model
from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.errors import InputError
from ddp_trainer.tools.export.tracing import TracedModel, open_dimensions

Writer = Callable[[TracedModel, Path], tuple[str, Callable[..., Any]]]
"""Function that writes a file. It returns the file's name and a function that computes with the
file."""


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
    """Return the exported graph. Dimensions that differ between the two calls are dynamic."""
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
    """Return " at" and the innermost line of user code in an error's traceback, or ""."""
    others = (
        str(Path(torch.__file__).parent),
        str(Path(__file__).parent),
        contextlib.__file__,
        "<",
    )
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _dynamic(value: Any, other: Any) -> Any:
    """Return an argument's dynamic dimensions, in the form that torch.export takes.

    Args:
        value: An argument of the traced call, or a part of it.
        other: The corresponding argument, or part of it, in the other call.
    """
    if isinstance(value, Tensor):
        return dict.fromkeys(open_dimensions(value, other), torch.export.Dim.DYNAMIC) or None
    if isinstance(value, Mapping):
        return {key: _dynamic(item, other[key]) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(starmap(_dynamic, zip(value, other, strict=True)))
    return None
