"""Tests of reading a checkpoint in parts, so that each rank holds little of it at once."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ddp_trainer.checkpoint import stream
from ddp_trainer.checkpoint.format import MODEL
from ddp_trainer.checkpoint.header import read_header
from ddp_trainer.checkpoint.parts import stored_tensors
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.names import parts_of
from ddp_trainer.parallel.dtensor import copy_parts
from tests.trainer.rank_processes import Launcher
from tests.trainer.update_probes import GPT, RESUME_CHUNK

CPU = torch.device("cpu")
BIG = {"layers": 2, "width": 512, "context": 8, "max_chars": 1000}
LARGEST = 4 * 512 * 512 * 4
"""Bytes of the largest tensor of the model."""
MARGIN = 20 << 20
"""Bytes for memory that the allocator keeps, and for messages."""


def test_checkpoint_tensors_are_read_in_parts_of_a_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHUNK", 100)
    tensors = {
        "a": torch.arange(10.0),
        "b": torch.arange(12, dtype=torch.int32),
        "c": torch.rand(300).bfloat16(),
        "d": torch.tensor(3, dtype=torch.uint8),
        "e": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "file")
    reads: list[int] = []

    def read(act: stream.Act) -> Tensors:
        found = act()
        reads.append(sum(tensor.nbytes for tensor in found.values()))
        return found

    described = [tensor.document() for tensor in read_header(tmp_path / "file").tensors]
    source = partial(stream.read_some, tmp_path / "file")
    given = stream.TensorStream(source, described, CPU, read)
    found = dict(given.items())
    assert given.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert list(given) == list(found)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].equal(tensor)
        assert found[name].dtype == tensor.dtype
    assert max(reads) == 600
    assert all(size <= 100 for size in sorted(reads)[:-1])


def test_large_tensors_of_a_checkpoint_are_read_in_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHUNK", 100)
    tensors = {"a": torch.arange(10.0), "b": torch.rand(13, 7), "c": torch.rand(31).double()}
    save_file(tensors, tmp_path / "model.safetensors")
    index = {each.name: each for each in stored_tensors(tmp_path, MODEL, [MODEL])}
    sizes: list[int] = []

    def ranges(name: str, first: int, last: int) -> torch.Tensor:
        numbers = stream.read_numbers(index[name], first, last)
        sizes.append(numbers.nbytes)
        return numbers

    given = stream.TensorStream(
        lambda names: {name: stream.read_stored(index[name]) for name in names},
        [each.document() for each in index.values()],
        CPU,
        lambda act: act(),
        ranges=ranges,
    )
    targets = {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}
    targets["b"] = torch.full((7, 13), -1.0).t()  # Its memory is not in the order of indices.
    for each in parts_of(given):
        assert each.shape == tensors[each.name].shape
        copy_parts(targets[each.name], each.parts)
    assert all(targets[name].equal(tensor) for name, tensor in tensors.items())
    assert len(sizes) == 7
    assert max(sizes) <= 100


@pytest.mark.slow
def test_no_fsdp2_rank_holds_a_whole_checkpoint_in_memory(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = {
        "global_batch": 2,
        "max_steps": 1,
        "ema": {"decay": 0.9},
        "task": BIG,
        "parallel": {"strategy": "fsdp2"},
        "eval_every_steps": 100,
        "checkpoint": {"directory": str(tmp_path)},
    }
    gang = launcher.train(f"--task={GPT}", f"--config={json.dumps(config)}", world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    whole = sum(path.stat().st_size for path in tmp_path.glob("step-*/*.safetensors"))
    gang = launcher.call("update_probes:measure_resume", config | {"max_steps": 3}, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (memory,), (held,) = gang.events("memory"), gang.events("probe")
    # Its own part, and what rank 0 reads at once: mapped, copied, and a message of one tensor.
    limit = whole // 2 + 2 * RESUME_CHUNK + 2 * LARGEST + MARGIN
    assert limit < whole
    assert max(memory["growth"]) <= limit, (memory, whole)
    assert max(held["held"]) <= held["estimate"] + 8
