"""Ctrl-C of a real `ddpjob run`: once saves and stops, twice stops at once."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from ddp_operator.cli.report_data import read_directory
from ddp_operator.report.timeline import build_timeline
from tests.agent.support import wait_until
from tests.operator.cli.test_killed_run import long_job, processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
SECONDS = 90
NAME = "ledger"


class Run:
    """A `ddpjob run` of one node whose updates take the given time."""

    def __init__(self, home: Path, update_seconds: float) -> None:
        job = long_job(home)
        job["spec"]["nodes"] = 1
        job["spec"]["config"]["task"]["update_seconds"] = update_seconds
        file = home / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        self._shown = home / f"output-{update_seconds}.txt"
        start = "from ddp_operator.cli.entry import main; main()"
        command = [sys.executable, "-c", start, "run", str(file), "--dir", str(home)]
        with self._shown.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def output(self) -> str:
        return self._shown.read_text()

    def wait_for(self, sentence: str) -> None:
        wait_until(lambda: sentence in self.output(), f"{sentence!r} is shown", SECONDS)


@contextmanager
def started(home: Path, update_seconds: float) -> Iterator[Run]:
    run = Run(home, update_seconds)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def checkpoints(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("step-*"))


def test_first_ctrl_c_saves_and_the_second_one_stops_at_once(tmp_path: Path) -> None:
    with started(tmp_path, 0.01) as run:
        wait_until((tmp_path / "1.txt").exists, "an update is complete", SECONDS)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(SECONDS) == 130, run.output()
    assert "Interrupted: saving a checkpoint (press Ctrl-C again to stop at once)" in run.output()
    found = re.search(r"Stopped: update (\d+) is saved\. Run the same command", run.output())
    assert found is not None, run.output()
    step = int(found[1])
    assert checkpoints(tmp_path) == [f"step-{step:08}.attempt-1"]

    # The update in progress takes so long that nothing can be saved before the second signal.
    with started(tmp_path, 30) as again:
        again.wait_for("all ranks of attempt 2 are training")
        again.process.send_signal(signal.SIGINT)
        again.wait_for("Interrupted: ")
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(SECONDS) == 130, again.output()
    assert f"Stopped at once: nothing was saved since update {step}." in again.output()
    assert checkpoints(tmp_path) == [f"step-{step:08}.attempt-1"]
    wait_until(lambda: not processes_of(tmp_path), "no process of a pod is left", SECONDS)
    check_page(tmp_path / NAME, step)


def check_page(folder: Path, step: int) -> None:
    """Check the data of the page about a run that was stopped, resumed, and stopped at once."""
    report = read_directory(folder)
    job = report.job
    assert job is not None
    assert (job.state, job.runs) == ("Suspended", False)
    assert job.message == "the user stopped the run at once; run the same command again to resume"
    assert [(one.number, one.end_step) for one in job.attempts] == [(1, step), (2, step)]
    timeline = build_timeline(job, report.history, report.now)
    assert [(row.number, row.kind) for row in timeline.rows] == [(1, "free"), (2, "free")]
    # The times of the status have whole seconds.
    assert sum(job.goodput.values()) == pytest.approx(timeline.seconds, abs=2)
    assert job.goodput["suspended"] > 0
    assert "recovering" not in job.goodput
