"""Export a checkpoint to files for other programs, and compare each file with the model."""

import json
import platform
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoint.format import write_json
from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.errors import InputError
from ddp_trainer.tools.export.tracing import TracedModel, open_dimensions
from ddp_trainer.tools.export.writers import WRITERS

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Permitted relative and absolute differences between outputs. Compilers change the order of
sums."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(slots=True)
class ExportResult:
    """Exported files and their differences from the model."""

    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference of an output from that of the model, by file name."""
    failed: list[str] = field(default_factory=list)
    """Names of the files whose outputs differ by more than the permitted differences."""


def export(
    traced: TracedModel, formats: Iterable[str], folder: Path, metadata: dict[str, Any]
) -> ExportResult:
    """Write a model in each format together with `metadata.json`, and compare each file.

    The function creates the folder atomically, even if a comparison fails, so that the user can
    inspect the files.

    Args:
        traced: The model.
        formats: Keys of `WRITERS`.
        folder: Output folder, which must not exist.
        metadata: First fields of `metadata.json`.

    Raises:
        InputError: If the folder exists, if packages for a format are missing, or if torch cannot
            trace the model for a format.
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
    for place in open_dimensions(value, other):
        shape[place] = "any" if place else "batch"
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
