"""Tests that the first task of docs/use/porting.md works unchanged."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp_trainer.commands.main import add_working_directory
from ddp_trainer.config.settings import resolve
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.tools.check.first_batch import check_training
from tests.trainer.runs import trained

PAGE = Path(__file__).parents[2] / "docs" / "use" / "porting.md"


def digits(part: str) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(len(part))
    return [(torch.randn(4, generator=generator), number % 3) for number in range(24)]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the import path of the example, beside a user's module."""
    mine: Any = types.ModuleType("mine")
    mine.Net = lambda width: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    mine.dataset = digits
    monkeypatch.setitem(sys.modules, "mine", mine)
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "mytask.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mytask", raising=False)
    return "mytask:build"


def test_task_of_the_porting_page_passes_its_checks_and_trains(task: str) -> None:
    built, config = build_task(task, resolve({}), Ranks(), torch.device("cpu"))
    assert check_training(built, config, 24) is None
    run = trained(task, global_batch=8, epochs=2, task={"width": 8})
    assert run.position.step == 6


def test_command_line_finds_a_task_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = [path for path in sys.path if path and Path(path) != tmp_path]
    monkeypatch.setattr(sys, "path", list(elsewhere))
    add_working_directory()
    add_working_directory()
    assert sys.path == [*elsewhere, str(tmp_path)]
    monkeypatch.setattr(sys, "path", list(elsewhere))
    monkeypatch.setattr(sys, "flags", types.SimpleNamespace(safe_path=True))
    add_working_directory()
    assert sys.path == elsewhere


def test_settings_in_the_tables_of_the_porting_page_exist() -> None:
    known = set(resolve({}).model_dump())
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    names = re.findall(r"`([a-z_]+)(?:[.:][^`]*)?`", " ".join(row.split("|")[2] for row in rows))
    members = {
        "train_data", "eval_data", "collate", "loss", "metrics", "state_dict", "load_state_dict",
        "build", "task", "nodes", "command", "collate_fn", "ddp_trainer", "__len__", "__getitem__",
    }  # fmt: skip
    assert set(names) - members <= known, set(names) - members - known
