"""Weights from other programs: nested states, and files that attack their reader."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from ddp_trainer.checkpoint.named_weights import WeightsError
from ddp_trainer.checkpoint.weights import open_weights

W = {"w": torch.arange(4.0)}


def names(path: Path, key: str | None = None) -> list[str]:
    return [name for name, *_ in open_weights(path, key).described]


NESTED: dict[str, tuple[Any, str | None, list[str]]] = {
    "plain": (W, None, ["w"]),
    "model": ({"model": W, "epoch": 3}, None, ["w"]),
    "state_dict": ({"state_dict": W, "optimizer": {"state": {}}}, None, ["w"]),
    "key": ({"model": W, "ema": {"v": torch.zeros(1)}}, "ema", ["v"]),
    "name with a dot": ({"a.b": torch.zeros(1), "a": torch.zeros(2)}, None, ["a.b", "a"]),
}


@pytest.mark.parametrize("kind", ["torch", "dcp"])
@pytest.mark.parametrize("case", NESTED)
def test_weights_are_found_in_a_nested_state(tmp_path: Path, kind: str, case: str) -> None:
    state, key, expected = NESTED[case]
    if kind == "torch":
        torch.save(state, tmp_path / "a")
    else:
        dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    assert sorted(names(tmp_path / "a", key)) == sorted(expected)


@pytest.mark.parametrize("kind", ["torch", "dcp"])
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"g": W, "d": W}, "it has g, d: choose the entry with the weights (convert --key)"),
        ({"model": W, "state_dict": W}, "it has model, state_dict: choose"),
        ({"w": torch.zeros(1), "epoch": 3}, "it has w, epoch: choose"),
    ],
)
def test_unclear_state_is_refused_with_its_entries(
    tmp_path: Path, kind: str, state: Any, reason: str
) -> None:
    if kind == "torch":
        torch.save(state, tmp_path / "a")
    else:
        dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path / "a")
    assert reason in str(caught.value)


def test_parts_of_a_sharded_tensor_are_joined(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    dcp.save({"w": whole[:, :1].clone()}, checkpoint_id=tmp_path / "one", no_dist=True)
    dcp.save({"w": whole[:, 1:].clone()}, checkpoint_id=tmp_path / "two", no_dist=True)
    (tmp_path / "two" / "__0_0.distcp").rename(tmp_path / "one" / "__1_0.distcp")

    def join(index: Any) -> None:
        info = index.state_dict_metadata["w"]
        info.size = torch.Size([3, 4])
        info.chunks.append(ChunkStorageMetadata(torch.Size([0, 1]), torch.Size([3, 3])))
        length = (tmp_path / "one" / "__1_0.distcp").stat().st_size
        place = _StorageInfo("__1_0.distcp", 0, length)
        index.storage_data[MetadataIndex("w", torch.Size([0, 1]), 1)] = place

    edit_index(tmp_path / "one", join)
    weights = open_weights(tmp_path / "one")
    assert weights.read(["w"])["w"].equal(whole)


class Attack:
    """Object whose unpickling runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def edit_index(folder: Path, edit: Callable[[Any], None]) -> None:
    path = folder / ".metadata"
    index = pickle.loads(path.read_bytes())  # noqa: S301 - torch wrote it
    edit(index)
    path.write_bytes(pickle.dumps(index))


def set_path(name: str) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        def edit(index: Any) -> None:
            for place in index.storage_data.values():
                place.relative_path = name

        edit_index(folder, edit)

    return attack


def set_size(folder: Path) -> None:
    def edit(index: Any) -> None:
        index.state_dict_metadata["w"].size = torch.Size([2**40])

    edit_index(folder, edit)


def set_offset(folder: Path) -> None:
    def edit(index: Any) -> None:
        for place in index.storage_data.values():
            place.offset = 1 << 40

    edit_index(folder, edit)


def drop_chunk(folder: Path) -> None:
    edit_index(folder, lambda index: index.state_dict_metadata["w"].chunks.clear())


def index_with_code(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Attack(folder / "attacked")))


def part_with_code(folder: Path) -> None:
    data = pickle.dumps(Attack(folder / "attacked"))
    path = folder / "__0_0.distcp"
    path.write_bytes(data.ljust(path.stat().st_size, b"\0"))


def link_index(folder: Path) -> None:
    (folder / ".metadata").rename(folder / "index")
    (folder / ".metadata").symlink_to(folder / "index")


def link_part(folder: Path) -> None:
    (folder / "__0_0.distcp").rename(folder / "part")
    (folder / "__0_0.distcp").symlink_to(folder / "part")


DCP_ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "code in the index": (index_with_code, "holds objects that torch does not write there"),
    "code in a part": (part_with_code, "cannot be read by torch.load"),
    "parent": (set_path("../a/__0_0.distcp"), "which is no file in the folder"),
    "absolute path": (set_path("/etc/passwd"), "which is no file in the folder"),
    "dots": (set_path(".."), "which is no file in the folder"),
    "huge tensor": (set_size, "would need"),
    "odd offset": (set_offset, "is a damaged DCP folder"),
    "missing part": (drop_chunk, 'lacks a part of "w"'),
    "linked index": (link_index, ".metadata is no regular file"),
    "linked part": (link_part, "__0_0.distcp is no regular file"),
    "no pickle": (lambda folder: _write(folder / ".metadata", b"\x80\x04junk"), "is a damaged DCP"),
    "other pickle": (lambda folder: _write(folder / ".metadata", pickle.dumps([])), "is a damaged"),
}


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("attack", DCP_ATTACKS)
def test_hostile_dcp_folder_is_refused(tmp_path: Path, attack: str) -> None:
    folder = tmp_path / "a"
    dcp.save(W, checkpoint_id=folder, no_dist=True)
    act, reason = DCP_ATTACKS[attack]
    act(folder)
    with pytest.raises(WeightsError) as caught:
        open_weights(folder).read(["w"])
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "attacked").exists()


def code(path: Path) -> None:
    torch.save({"w": Attack(path.parent / "attacked")}, path)


def old_code(path: Path) -> None:
    path.write_bytes(pickle.dumps(Attack(path.parent / "attacked")))


def flip(path: Path) -> None:
    torch.save({"w": torch.zeros(1000)}, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def compress(path: Path) -> None:
    torch.save(W, path)
    data = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(data) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def cut(path: Path) -> None:
    torch.save(W, path)
    path.write_bytes(path.read_bytes()[:-30])


def expand(path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, path)


def sparse(path: Path) -> None:
    torch.save({"w": torch.eye(2).to_sparse()}, path)


def claim(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")


def note(path: Path) -> None:
    path.write_text("notes")


FILE_ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "code": (code, "holds objects other than tensors, which could run code: save only the state"),
    "code, old format": (old_code, "could run code"),
    "flipped bit": (flip, "does not match its CRC32"),
    "compressed": (compress, "is a compressed archive"),
    "cut": (cut, "is a damaged archive"),
    "huge view": (expand, "would need 4398046511104 bytes"),
    "sparse": (
        lambda path: torch.save({"w": torch.eye(2).to_sparse()}, path),
        "is no dense tensor",
    ),
    "huge header": (claim, "its header would have 1099511627776 bytes"),
    "empty file": (Path.touch, "is no file of weights"),
    "text": (note, "is no file of weights"),
    "list": (lambda path: torch.save([torch.zeros(1)], path), "does not hold tensors by name"),
    "pipe": (os.mkfifo, "is no file of weights, no checkpoint and no DCP folder"),
}


@pytest.mark.parametrize("attack", FILE_ATTACKS)
def test_hostile_file_is_refused(tmp_path: Path, attack: str) -> None:
    path = tmp_path / "a"
    act, reason = FILE_ATTACKS[attack]
    act(path)
    with pytest.raises(WeightsError) as caught:
        open_weights(path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "attacked").exists()
