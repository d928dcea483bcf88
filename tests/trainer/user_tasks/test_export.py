"""A trained task is exported to files that compute the same outputs."""

from pathlib import Path

import pytest

from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.user_tasks.drives import FIGURES, WAIT, Figure, Runs, cases, command, finish
from tests.trainer.user_tasks.table import UserTask


@pytest.mark.slow
@pytest.mark.timeout(2 * WAIT)
@pytest.mark.parametrize(("task", "weights"), cases(2, "last", "average"))
def test_exported_files_compute_the_outputs_of_the_model(
    launcher: Launcher, tmp_path: Path, task: UserTask, weights: str
) -> None:
    ema = ("--ema.decay=0.9",) if weights == "average" else ()
    finish(Runs(launcher, task, ("--max_steps=2", *ema), tmp_path).train("run", 1))
    files = {"model.safetensors"}
    if task.untraceable:
        gang = export(launcher, tmp_path, task)
        assert gang.wait() == [2]
        assert "export: torch.export cannot trace the model at " in gang.err(0).splitlines()[-1]
        gang = export(launcher, tmp_path, task, "--formats=safetensors")
    else:
        files.add("model.pt2")
        gang = export(launcher, tmp_path, task)
    assert gang.wait(WAIT) == [0], gang.err(0)
    events = gang.events("export")
    assert {Path(event["file"]).name for event in events} == files
    largest = max(event["largest_difference"] for event in events)
    FIGURES.append(Figure(task.name, "export", largest))


def export(launcher: Launcher, folder: Path, task: UserTask, *settings: str) -> Gang:
    places = (f"--checkpoint={folder / 'run'}", f"--output={folder / 'out'}")
    return command(launcher, "export", task, *places, *settings)
