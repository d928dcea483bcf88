"""Tests of changes of a task's code or data between two attempts."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.run.saving import save
from ddp_trainer.run.source import Fingerprints, source_fingerprint
from ddp_trainer.saved_state import SavedState
from tests.trainer.checkpoint.test_manager import own_state
from tests.trainer.runs import trained

TASKS = Path(__file__).parents[1] / "sample_tasks.py"


def fingerprint(path: str) -> str:
    """Load a task's module as a new process does, and return the fingerprint of its code."""
    importlib.invalidate_caches()
    name = path.partition(":")[0]
    for loaded in [n for n in sys.modules if n.partition(".")[0] == name.partition(".")[0]]:
        del sys.modules[loaded]
    importlib.import_module(name)
    return source_fingerprint(path)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of code, as a ConfigMap is mounted: one task with a sibling, and one package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "planted_task.py").write_text("import planted_sibling\nA = 1\n")
    (tmp_path / "planted_sibling.py").write_text("B = 1\n")
    (tmp_path / "planted_package").mkdir()
    (tmp_path / "planted_package" / "__init__.py").write_text("")
    (tmp_path / "planted_package" / "task.py").write_text("from planted_package import model\n")
    (tmp_path / "planted_package" / "model.py").write_text("C = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("planted_task:build", "planted_task.py"),
        ("planted_task:build", "planted_sibling.py"),
        ("planted_package.task:build", "planted_package/task.py"),
        ("planted_package.task:build", "planted_package/model.py"),
    ],
)
def test_changed_source_file_changes_the_code_fingerprint(code: Path, path: str, file: str) -> None:
    before = fingerprint(path)
    assert fingerprint(path) == before
    (code / file).write_text((code / file).read_text() + "D = 1  # rogue\n")
    assert fingerprint(path) != before
    sys.modules.pop("planted_sibling", None)


def test_other_files_of_the_folder_are_in_the_code_fingerprint_only_if_loaded(code: Path) -> None:
    before = fingerprint("planted_task:build")
    (code / "notes.py").write_text("E = 1\n")
    assert fingerprint("planted_task:build") == before


def test_bundled_task_has_no_code_fingerprint() -> None:
    assert source_fingerprint("ddp_trainer.tasks.miniresnet:build") == ""


@pytest.mark.parametrize(
    "before", [{}, {"source": "a"}, {"source": "a", "data": "Folder, 9 samples"}]
)
def test_same_code_and_data_and_old_checkpoints_cause_no_warning(
    before: dict[str, object],
) -> None:
    saved = SavedState.model_validate(own_state(9) | before)
    assert Fingerprints("a", "Folder, 9 samples").warnings(saved) == []


@pytest.mark.slow
def test_run_that_resumes_with_other_code_or_data_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    shutil.copy(TASKS, code / "rogue_task.py")
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def warnings(steps: int) -> list[str]:
        sys.modules.pop("rogue_task", None)
        importlib.invalidate_caches()
        checkpoint = {"directory": str(run)}
        train("rogue_task:build", max_steps=steps, global_batch=6, checkpoint=checkpoint)
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [event["message"] for event in found if event["event"] == "warning"]

    assert warnings(2) == []
    with (code / "rogue_task.py").open("a") as file:
        file.write("\nSTOLEN = True\n")
    assert warnings(4) == [
        "the code of the task has changed since attempt 0 saved the checkpoint of step 2"
    ]
    text = (code / "rogue_task.py").read_text()
    (code / "rogue_task.py").write_text(
        text.replace("torch.randn(count, 6,", "2 * torch.randn(count, 6,")
    )
    changed = warnings(6)[1]
    assert changed.startswith("the data have changed since attempt 1 saved the checkpoint of step")
    before, now = changed.partition(": they were ")[2].split(", now they are ")
    assert before != now


def train(path: str, /, **settings: Any) -> None:
    """Train as a new process does, and save at the end."""
    run = trained(path, **settings)
    save(run)
