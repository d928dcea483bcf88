"""The code of docs/use/tutorial.md works in the steps of the page."""

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.building import build_task
from ddp_trainer.tools.check.first_batch import check_training
from tests.trainer.runs import trained

PAGE = Path(__file__).parents[2] / "docs" / "use" / "tutorial.md"
SCRIPT, TASK, CORRECTION, USE = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)
TRAINED = {"epochs": 8, "global_batch": 128, "optimizer": {"name": "adamw", "lr": 0.01}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with both files of the page, where Python finds them."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "spirals.py").write_text(TASK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for module in ("train", "spirals"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def corrected(task: str) -> str:
    """Return the task of the page with the line that its third step changes."""
    name = CORRECTION.split("(")[0]
    [wrong] = [line for line in task.splitlines() if line.startswith(f"{name}(nn.")]
    return task.replace(wrong, CORRECTION.rstrip())


def check() -> None:
    task, config = build_task("spirals:build", resolve({}), Ranks(), torch.device("cpu"))
    assert check_training(task, config, 4000) is None


def test_script_of_the_tutorial_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    exec(compile(SCRIPT, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    losses = re.findall(r"epoch \d+: loss (\S+)", capsys.readouterr().out)
    assert len(losses) == 10
    assert float(losses[-1]) < 0.2


def test_check_finds_the_mistake_of_the_tutorial(folder: Path) -> None:
    del folder
    with pytest.raises(InputError, match=r"the sum of loss is a mean: .* for 32 samples"):
        check()


@pytest.mark.slow
def test_corrected_task_of_the_tutorial_trains_a_model_that_plain_torch_loads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spirals.py").write_text(corrected(TASK), encoding="utf-8")
    check()
    run = trained("spirals:build", **TRAINED)
    assert run.position.step == 8 * 32
    save_file(run.learner.model.state_dict(), folder / "spirals.safetensors")
    exec(compile(USE, "use.py", "exec"), {})  # noqa: S102
    right = re.search(r"right: (\S+)", capsys.readouterr().out)
    assert right
    assert float(right[1]) > 0.75
