"""Samples that run on this machine as they are, or with fewer updates."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"

pytestmark = pytest.mark.slow


def run(folder: Path, name: str, *settings: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a sample to its completion, by default in this environment. Return the output."""
    options = [f"--set={setting}" for setting in settings]
    command = [sys.executable, "-m", "ddp_operator.cli.main", "run", *options, str(SAMPLES / name)]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "settings", "shown"),
    [
        ("script.yaml", [], "of 4: the ranks add up to 6"),
        ("gpt.yaml", ["config.max_steps=4", "config.eval_every_steps=2"], "step 4/4 (100%)"),
        ("elastic.yaml", ["config.epochs=1"], "step 6/6 (100%)"),
        ("own-task.yaml", ["config.epochs=1"], "Completed: all 2 ranks"),
    ],
)
def test_sample_completes(tmp_path: Path, name: str, settings: list[str], shown: str) -> None:
    assert shown in run(tmp_path, name, *settings)


def test_script_that_reports_shows_its_progress_and_its_checkpoint(tmp_path: Path) -> None:
    shown = run(tmp_path, "report.yaml")
    assert "step 200/200 (100%)" in shown
    (saved,) = tmp_path.glob("ddp-runs/report/volumes/training-shared/report-*/model.pt")
    assert f"checkpoint: {saved.relative_to(tmp_path)}" in shown


def test_every_sample_is_in_the_index() -> None:
    index = (SAMPLES / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in SAMPLES.glob("*.yaml") if f"]({path.name})" not in index]
    assert missing == []
