"""`ddp-trainer inspect`: what it says of whole and damaged checkpoints, and of the next start."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint import load
from ddp_trainer.checkpoint.format import MANIFEST
from ddp_trainer.commands.main import main
from ddp_trainer.errors import InputError
from ddp_trainer.tools.inspection import inspect
from tests.trainer.checkpoint.test_manager import saved
from tests.trainer.checkpoint.test_planted_checkpoints import (
    Act,
    file_for_checkpoint,
    link_checkpoint,
    list_in_manifest,
    newest,
    rewrite,
)
from tests.trainer.planted import content


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = main(["inspect", "-o", "json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def test_whole_checkpoints_are_described_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10, 20)
    (tmp_path / "step-00000030.attempt-1.tmp").mkdir()
    (tmp_path / "set-aside-1").mkdir()
    (tmp_path / "set-aside-1" / "notes").write_text("abc")
    code, found = shown(capsys, tmp_path)
    assert (code, found["sound"], found["set_aside"]) == (0, True, {"set-aside-1": 3})
    unfinished, first, second = found["checkpoints"]
    assert (unfinished["step"], unfinished["state"]) == (30, "unfinished")
    assert (first["step"], first["state"], second["step"]) == (20, "whole", 10)
    assert (first["attempt"], first["tensors"], first["world_size"]) == (1, 2, 1)
    assert first["bytes"] == sum(len(data) for data in content(newest(tmp_path)).values())
    assert first["config_digest"] == second["config_digest"]
    assert found["start"] == "step-00000020.attempt-1"
    assert found["outcome"] == "a start resumes from step-00000020.attempt-1"


def cut_model(run: Path) -> None:
    path = newest(run) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def flip_model(run: Path) -> None:
    path = newest(run) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def drop_manifest(run: Path) -> None:
    (newest(run) / MANIFEST).unlink()


DAMAGES: dict[str, tuple[Act, str]] = {
    "cut": (cut_model, "model.safetensors has "),
    "flipped": (flip_model, "model.safetensors does not match its CRC32"),
    "no manifest": (drop_manifest, "MANIFEST.json is missing"),
    "path in the manifest": (list_in_manifest("../x"), "MANIFEST.json lists '../x'"),
    "link": (link_checkpoint, "it is a link, not a folder"),
    "file": (file_for_checkpoint, "it is a file, not a folder"),
    "odd header": (rewrite("model.safetensors", b"\xff" * 64), "model.safetensors cannot be decod"),
    "odd state": (rewrite("state.json", b"[]"), "state.json is of step None"),
    "odd task": (rewrite("task.json", b'{"$items": [5]}'), "task.json has an invalid value"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_named_and_nothing_changes(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10, 20)
    plant, reason = DAMAGES[damage]
    plant(tmp_path)
    before = content(tmp_path)
    code, found = shown(capsys, tmp_path)
    assert content(tmp_path) == before
    assert (code, found["sound"]) == (1, False)
    assert found["checkpoints"][0]["state"] == "damaged"
    assert found["checkpoints"][0]["reason"].startswith(reason)
    # A start makes the same choice, and renames the damaged one.
    choice = load.choose(tmp_path)
    assert found["start"] == str(choice.name) == "step-00000010.attempt-1"
    code, found = shown(capsys, tmp_path)
    assert (code, found["checkpoints"][0]["state"]) == (0, "set aside as damaged")


def test_quick_inspection_reads_no_checksums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 20)
    flip_model(tmp_path)
    assert shown(capsys, tmp_path, "--quick")[0] == 0
    assert shown(capsys, tmp_path)[0] == 1
    cut_model(tmp_path)
    assert shown(capsys, tmp_path, "--quick")[0] == 1


def test_start_that_would_be_refused_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 20)
    flip_model(tmp_path)
    found = shown(capsys, tmp_path)[1]
    assert found["start"] is None
    assert found["outcome"].startswith("a start ends with exit code 2, because no checkpoint is")
    with pytest.raises(InputError):
        load.choose(tmp_path)
    document = json.loads((newest(tmp_path) / MANIFEST).read_text())
    (newest(tmp_path) / MANIFEST).write_text(json.dumps(document | {"format": 9}))
    code, found = shown(capsys, tmp_path)
    assert (code, found["checkpoints"][0]["state"]) == (1, "unknown format")
    assert found["outcome"].endswith("because of step-00000020.attempt-1")


def test_table_shows_one_line_per_checkpoint_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10, 20)
    flip_model(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["STEP", "ATTEMPT", "STATE", "SIZE"]
    assert lines[1].split()[:3] == ["20", "1", "damaged"]
    assert lines[2].split()[:3] == ["10", "1", "whole"]
    assert lines[3:] == [
        "step-00000020.attempt-1: model.safetensors does not match its CRC32",
        "a start resumes from step-00000010.attempt-1",
    ]


def test_single_checkpoint_is_inspected_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10, 20)
    code, found = shown(capsys, newest(tmp_path))
    assert (code, [one["step"] for one in found["checkpoints"]]) == (0, [20])


@pytest.mark.parametrize("what", ["missing", "file", "other folder", "nothing named", "rest"])
def test_wrong_directory_is_one_sentence(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    cases: dict[str, list[Path | str]] = {
        "missing": [tmp_path / "none"],
        "file": [tmp_path / "file"],
        "other folder": [tmp_path / "folder"],
        "nothing named": [],
        "rest": [tmp_path, "--fast"],
    }
    assert main(["inspect", *map(str, cases[what])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("inspect: ")


def test_run_without_checkpoints_begins_at_update_0(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = inspect(tmp_path, checksums=True)
    assert (found.checkpoints, found.outcome) == ([], "a start begins at update 0")


def test_checkpoint_that_a_run_deletes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20)
    original = Path.iterdir

    def racing(self: Path) -> Any:
        found = list(original(self))
        if self == tmp_path and newest(tmp_path).exists():
            newest(tmp_path).rename(tmp_path / "gone")
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", racing)
    found = inspect(tmp_path, checksums=True)
    assert [one.step for one in found.checkpoints] == [10]


def test_inspection_does_not_import_torch(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    program = (
        "import sys\nfrom ddp_trainer.commands.main import main\n"
        f"code = main(['inspect', {str(tmp_path)!r}])\n"
        "print(code, {'torch', 'numpy', 'safetensors'} & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "0 set()"
