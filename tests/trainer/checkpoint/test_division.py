"""Tests of the division of a checkpoint over ranks, and of the commit of its parts."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import assembly, load, writer
from ddp_trainer.checkpoint.contents import read_index
from ddp_trainer.checkpoint.division import Holding, Pieces, pieces_of, quotas, writers
from ddp_trainer.checkpoint.format import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
    part_name,
    verify,
)
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.checkpoint.stream import read_stored
from ddp_trainer.checkpoint.tensor_file import Piece, piece_parts
from ddp_trainer.errors import InputError
from tests.trainer.checkpoint.test_manager import whole
from tests.trainer.rank_processes import Launcher

NAME = CheckpointName(7, 1)
CLAIM = {"job": "", "attempt": 1, "incarnation": "aa", "save": "01"}


def numbers(seed: int) -> list[tuple[str, Piece]]:
    """Return tensors of many shapes and types."""
    torch.manual_seed(seed)
    shapes = [(3, 5), (), (7,), (0, 4), (2, 3, 4), (1,), (64, 9)]
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.float64]
    found = {
        f"{kind}{shape}": torch.randn(shape).mul(100).to(kind) for shape in shapes for kind in kinds
    }
    found["turned"] = torch.randn(6, 5).t()
    return [(MODEL, Piece.whole(name, tensor)) for name, tensor in sorted(found.items())]


def test_shares_fill_the_writers_up_to_the_same_level() -> None:
    assert quotas([0, 0, 0, 0], 100) == [25, 25, 25, 25]
    assert quotas([50, 0, 10], 30) == [0, 20, 10]
    assert quotas([100, 0], 10) == [0, 10]
    assert quotas([5, 5], 0) == [0, 0]
    draw = random.Random(0)  # noqa: S311 - of a test
    for _ in range(300):
        own = [draw.randrange(100) for _ in range(draw.randrange(1, 9))]
        shares = quotas(own, equal := draw.randrange(500))
        assert sum(shares) == equal
        loads = [size + share for size, share in zip(own, shares, strict=True) if share]
        if len(loads) > 1:
            assert max(loads) - min(loads) <= len(own)


def test_small_state_has_one_writer_and_large_state_as_many_as_it_fills() -> None:
    assert writers([0, 0, 0, 0], 10, 10) == [0]
    assert writers([0, 0, 0, 0], 11, 10) == [0, 2]
    assert writers([0, 0, 0, 0], 1000, 10) == [0, 1, 2, 3]
    assert writers([9, 9, 9, 0], 0, 10) == [0, 1, 2]
    assert writers([0, 30, 0], 0, 10) == [0, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_pieces_of_all_writers_are_disjoint_and_cover_each_tensor(count: int) -> None:
    found = Holding(equal=[one for one in numbers(count) if one[1].numel])
    shares = quotas([0] * count, found.equal_bytes)
    pieces = [pieces_of(found, shares, number).get(MODEL, []) for number in range(count)]
    sizes = [sum(piece.nbytes for piece in those) for those in pieces]
    assert max(sizes) - min(sizes) <= 16 + count
    for _, tensor in found.equal:
        own = [piece for those in pieces for piece in those if piece.name == tensor.name]
        assert sum(piece.numel for piece in own) == tensor.numel
        data = b"".join(bytes(piece.data()) for piece in sorted(own, key=lambda p: p.first))
        assert data == bytes(tensor.data())


def write(directory: Path, count: int, claims: dict[int, Any] | None = None) -> list[Piece]:
    """Write all parts of a checkpoint, and return its tensors."""
    equal = numbers(1)
    empty = {MODEL: [piece for _, piece in equal if not piece.numel]}
    moments = Piece.whole("exp_avg/w", torch.arange(12.0))
    filled = [one for one in equal if one[1].numel] + [(OPTIMIZER, moments)]
    found = Holding(equal=filled)
    shares = quotas([0] * count, found.equal_bytes)
    assembly.begin(directory, NAME, CLAIM, lambda: None)
    for number in range(count):
        mine: Pieces = pieces_of(found, shares, number)
        if number == 0:
            mine[MODEL] = mine.get(MODEL, []) + empty[MODEL]
        claim = (claims or {}).get(number + 1, CLAIM)
        if claim is not None:
            parts = {file: piece_parts(those) for file, those in mine.items()}
            assembly.write_part(directory, NAME, (number + 1, count), claim, parts)
    return [piece for _, piece in equal]


def finish(directory: Path, count: int) -> Path:
    rest: dict[str, Any] = {"state": {}, "groups": []}
    saved = whole(7, Snapshot({}, {}, rest))
    documents = writer.documents_of(saved)
    assembly.finish(directory, NAME, count, CLAIM, documents, may_commit=lambda: None)
    return directory / str(NAME)


@pytest.mark.parametrize("count", [2, 5])
def test_checkpoint_in_parts_is_read_bit_for_bit(tmp_path: Path, count: int) -> None:
    tensors = write(tmp_path, count)
    path = finish(tmp_path, count)
    assert load.choose(tmp_path).name == NAME
    assert json.loads((path / MANIFEST).read_text())["format"] == 2
    index = {stored.name: stored for stored in read_index(path)[MODEL]}
    assert sorted(index) == sorted(piece.name for piece in tensors)
    for piece in tensors:
        got = read_stored(index[piece.name])
        assert got.dtype == piece.source.dtype
        assert got.shape == piece.source.shape
        assert bytes(Piece.whole(piece.name, got).data()) == bytes(piece.data())


def test_missing_part_or_part_of_another_gang_is_never_committed(tmp_path: Path) -> None:
    other = CLAIM | {"incarnation": "bb"}
    for claims, reason in (({2: None}, "part 2 of 3 is missing"), ({2: other}, "another process")):
        write(tmp_path, 3, claims)
        with pytest.raises(OSError, match=reason):
            finish(tmp_path, 3)
        assert load.choose(tmp_path).name is None
        assembly.abandon(tmp_path, NAME)
        assert names_in(tmp_path) == []


def test_cut_part_is_never_committed(tmp_path: Path) -> None:
    write(tmp_path, 3)
    file = tmp_path / f"{NAME}.tmp" / part_name(MODEL, 2, 3)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OSError, match="bytes, not"):
        finish(tmp_path, 3)


def test_part_without_a_begun_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        assembly.write_part(tmp_path, NAME, (1, 2), CLAIM, {})
    assert list(tmp_path.iterdir()) == []


def test_stale_file_in_the_folder_is_no_part_of_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / f"{NAME}.tmp" / part_name(MODEL, 3, 4)).write_bytes(b"stale")
    path = finish(tmp_path, 2)
    assert part_name(MODEL, 3, 4) not in json.loads((path / MANIFEST).read_text())["files"]
    assert load.choose(tmp_path).name == NAME


@pytest.mark.parametrize("damage", ["lost", "unlisted", "flipped", "exchanged"])
def test_damaged_part_makes_the_checkpoint_damaged(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 3)
    path = finish(tmp_path, 3)
    file, other = (path / part_name(MODEL, number, 3) for number in (2, 3))
    if damage == "lost":
        file.unlink()
    elif damage == "flipped":
        data = bytearray(file.read_bytes())
        data[-3] ^= 4
        file.write_bytes(data)
    elif damage == "exchanged":
        both = file.read_bytes(), other.read_bytes()
        other.write_bytes(both[0])
        file.write_bytes(both[1])
    else:
        manifest = json.loads((path / MANIFEST).read_text())
        del manifest["files"][file.name]
        (path / MANIFEST).write_text(json.dumps(manifest))
        verify(path)  # Only the cover of the tensors shows it.
    with pytest.raises(InputError, match="no checkpoint in"):
        load.choose(tmp_path)


def test_description_of_parts_that_lies_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 2)
    path = finish(tmp_path, 2)
    file = path / part_name(MODEL, 2, 2)
    data = file.read_bytes()
    assert data.count(b'\\"begin\\":') > 0
    file.write_bytes(data.replace(b'\\"begin\\":', b'\\"begin\\":1', 1).replace(b" ", b"", 1))
    with pytest.raises(BrokenCheckpointError):
        read_index(path)


@pytest.mark.slow
def test_failure_of_one_rank_is_a_warning_and_the_next_save_succeeds(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ["--task=sample_tasks:build", "--global_batch=10", "--max_steps=2"]
    arguments += [f"--checkpoint.directory={tmp_path}", "--checkpoint.every_steps=1"]
    given = ["once", *arguments, "--checkpoint.part_mb=0.0001", "--checkpoint.background=false"]
    gang = launcher.call("format_probes:train_with_failing_part", given, world=3)
    assert gang.wait() == [0, 0, 0], gang.err(0)
    (warning,) = gang.events("warning")
    assert warning["message"].startswith(f"checkpoint of step 1 was not saved to {tmp_path}: ")
    assert [str(name) for name in names_in(tmp_path)] == ["step-00000002.attempt-0"]


@pytest.mark.slow
def test_failure_of_one_rank_at_the_end_ends_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    arguments = ["--task=sample_tasks:build", "--global_batch=10", "--max_steps=2"]
    given = ["always", *arguments, f"--checkpoint.directory={tmp_path}"]
    given.append("--checkpoint.part_mb=0.0001")
    gang = launcher.call("format_probes:train_with_failing_part", given, world=2)
    assert gang.wait() == [74, 74]
    (line,) = gang.err(0).splitlines()
    assert line.startswith(f"checkpoint of step 2 was not saved to {tmp_path}: [Errno 5]")
    assert gang.err(1) == ""
    assert names_in(tmp_path) == []
