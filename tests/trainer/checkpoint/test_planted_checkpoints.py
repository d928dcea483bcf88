"""Another pod on the claim, or a user, leaves a folder that looks like a newer checkpoint."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.format import LARGEST_DOCUMENT, MANIFEST, names_in
from tests.trainer.checkpoint.test_manager import chosen, own_state, saved

Act = Callable[[Path], object]


def newest(run: Path) -> Path:
    return run / "step-00000020.attempt-1"


def list_in_manifest(name: str) -> Act:
    def plant(run: Path) -> None:
        document = json.loads((newest(run) / MANIFEST).read_text())
        document["files"][name] = {"bytes": 9, "crc32": "00000000"}
        (newest(run) / MANIFEST).write_text(json.dumps(document))

    return plant


def link_file(run: Path) -> None:
    target = run / "model"
    (newest(run) / "model.safetensors").rename(target)
    (newest(run) / "model.safetensors").symlink_to(target)


def link_checkpoint(run: Path) -> None:
    newest(run).rename(run / "elsewhere")
    newest(run).symlink_to(run / "elsewhere")


def grow_manifest(run: Path) -> None:
    os.truncate(newest(run) / MANIFEST, 1 << 40)


def grow_state(run: Path) -> None:
    """Make a file that no start may read into memory, with the right size and checksum."""
    zeros = bytes(1 << 20)
    crc = 0
    for _ in range((LARGEST_DOCUMENT >> 20) + 1):
        crc = zlib.crc32(zeros, crc)
    (newest(run) / "state.json").write_bytes(b"")
    os.truncate(newest(run) / "state.json", LARGEST_DOCUMENT + (1 << 20))
    document = json.loads((newest(run) / MANIFEST).read_text())
    entry = {"bytes": LARGEST_DOCUMENT + (1 << 20), "crc32": f"{crc:08x}"}
    document["files"]["state.json"] = entry
    (newest(run) / MANIFEST).write_text(json.dumps(document))


def nest_manifest(run: Path) -> None:
    (newest(run) / MANIFEST).write_text("[" * 100_000)


def file_for_checkpoint(run: Path) -> None:
    newest(run).rename(run / "elsewhere")
    newest(run).write_text("notes")


def pipe_for_checkpoint(run: Path) -> None:
    newest(run).rename(run / "elsewhere")
    os.mkfifo(newest(run))


def rewrite(name: str, content: bytes) -> Act:
    """Return an attack that replaces a file and lists its size and CRC32 in the manifest."""

    def plant(run: Path) -> None:
        (newest(run) / name).write_bytes(content)
        document = json.loads((newest(run) / MANIFEST).read_text())
        document["files"][name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        (newest(run) / MANIFEST).write_text(json.dumps(document))

    return plant


def tensors_of(header: bytes, size: int | None = None) -> bytes:
    """Return a safetensors file with a header and no numbers."""
    return struct.pack("<Q", len(header) if size is None else size) + header


def tensor(shape: list[int], end: int) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()


def change_state(**changes: object) -> Act:
    """Return an attack that changes fields of `state.json`, or removes those that are None."""
    document = {k: v for k, v in (own_state(20) | changes).items() if v is not None}
    return rewrite("state.json", json.dumps(document).encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (
            list_in_manifest("../secret"),
            "MANIFEST.json lists '../secret', which is not a file name",
        ),
        (
            list_in_manifest("/etc/passwd"),
            "MANIFEST.json lists '/etc/passwd', which is not a file n",
        ),
        (list_in_manifest(".."), "MANIFEST.json lists '..', which is not a file name"),
        (list_in_manifest(""), "MANIFEST.json lists '', which is not a file name"),
        (list_in_manifest("a\0b"), r"MANIFEST.json lists 'a\x00b', which is not a file name"),
        (link_file, "model.safetensors has "),
        (link_checkpoint, "it is a link, not a folder"),
        (grow_manifest, "MANIFEST.json is damaged"),
        (nest_manifest, "MANIFEST.json is damaged"),
        (list_in_manifest("a" * 300), "MANIFEST.json lists 'aaaa"),
        (file_for_checkpoint, "it is a file, not a folder"),
        (pipe_for_checkpoint, "it is a file, not a folder"),
        (rewrite("state.json", b"[" * 100_000), "state.json is damaged"),
        (rewrite("state.json", b'{"step": ' + b"9" * 5000 + b"}"), "state.json is damaged"),
        (grow_state, "state.json is damaged"),
        (rewrite("state.json", b"[]"), "state.json is of step None, not of step 20"),
        (rewrite("state.json", b'{"step": 9}'), "state.json is of step 9, not of step 20"),
        (rewrite("optimizer.json", b"{"), "optimizer.json is damaged"),
        (rewrite("model.safetensors", tensors_of(b"{}", 100 << 30)), "model.safetensors cannot be"),
        (rewrite("model.safetensors", tensors_of(tensor([4], 8))), "model.safetensors cannot be"),
        (
            rewrite("ema.safetensors", tensors_of(tensor([2**62, 4], 0))),
            "ema.safetensors cannot be",
        ),
        (rewrite("task.json", b"nothing"), "task.json is damaged"),
        (
            rewrite("state.json", b'{"step": 20}'),
            "state.json has an invalid value (samples: Field required)",
        ),
        (change_state(data_size=[]), "state.json has an invalid value (data_size: Input"),
        (change_state(samples=-1), "state.json has an invalid value (samples: Input"),
        (change_state(seconds=None), "state.json has an invalid value (seconds: Field"),
        (change_state(world_size=None), "state.json has an invalid value (world_size: F"),
        (change_state(config={}), "state.json has an invalid value (config.seed: Field"),
        (
            change_state(scaler={"scale": 1.0}),
            "state.json has an invalid value (scaler: Value error, _growth_tracker is mis",
        ),
        (change_state(optimizer=5), "state.json has an invalid value (optimizer: Input"),
        (change_state(nonfinite={"updates": "x"}), "state.json has an invalid value (non"),
        (rewrite("optimizer.json", b"{}"), "optimizer.json has an invalid value (state: F"),
        (rewrite("model.safetensors", tensors_of(b"{}")), "model.safetensors holds no tensor"),
        (
            rewrite("task.json", b'{"moments": {"$tensor": "moments"}}'),
            "task.json has an invalid value (KeyError: 'moments')",
        ),
        (rewrite("task.json", b'{"$items": [5]}'), "task.json has an invalid value (TypeE"),
        (
            rewrite("task.json", b'{"a":' * 5000 + b"1" + b"}" * 5000),
            "task.json is ",  # The limit of the JSON decoder depends on the version of Python.
        ),
    ],
)
def test_planted_checkpoint_counts_as_damaged_and_an_older_one_is_used(
    tmp_path: Path, plant: Act, reason: str
) -> None:
    saved(tmp_path, 10, 20)
    plant(tmp_path)
    step, skipped = chosen(tmp_path)
    assert step == 10
    assert f"is damaged: {reason}" in skipped[0]
    # Its name is free again, so that the run can save this step.
    assert [str(name) for name in names_in(tmp_path)][-1].endswith(".broken")


def test_tensors_of_another_model_do_not_count_as_damage(tmp_path: Path) -> None:
    """The user has changed the model and must get an error. Older checkpoints do not fit either."""
    saved(tmp_path, 10, 20)
    header = json.dumps({"renamed": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
    rewrite("model.safetensors", tensors_of(header.encode()))(tmp_path)
    assert chosen(tmp_path) == (20, [])


@pytest.mark.parametrize("name", [f"step-{10**20}.attempt-1", f"step-00000020.attempt-{10**30}"])
def test_name_with_a_number_above_64_bits_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 10)
    (tmp_path / name).mkdir()
    assert chosen(tmp_path) == (10, [])


@pytest.mark.parametrize("name", ["step-000000000020.attempt-1", "step-٠٠٠٠٠٠٢٠.attempt-1"])
def test_name_with_another_spelling_of_the_step_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert chosen(tmp_path) == (None, [])
