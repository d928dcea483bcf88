"""Two local runs at the same time do not disturb each other."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.operator.cli.test_local_goodput import STEPS, job


def start(home: Path) -> subprocess.Popen[str]:
    home.mkdir()
    file = home / "job.yaml"
    file.write_text(yaml.safe_dump(job(home, [])))
    command = [sys.executable, "-c", "from ddp_operator.cli.entry import main; main()", "run"]
    command += [str(file), "--dir", str(home)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_two_local_runs_at_the_same_time_both_complete(tmp_path: Path) -> None:
    """The agents of the two runs use the same ports, on different loopback addresses."""
    runs = [start(tmp_path / name) for name in ("one", "other")]
    try:
        outputs = [run.communicate(timeout=120)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    for run, output in zip(runs, outputs, strict=True):
        assert run.returncode == 0, output
        assert f"steps: {STEPS}" in output
        assert "attempts: 1" in output
