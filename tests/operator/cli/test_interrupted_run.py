"""Tests of a real `ddpjob run`: its listening addresses, and the effect of one and two Ctrl-C."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
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

    def __init__(self, home: Path, update_seconds: float, *, standby: bool) -> None:
        job = long_job(home)
        job["spec"] |= {"nodes": 1, "standby": standby}
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
def started(home: Path, update_seconds: float, *, standby: bool) -> Iterator[Run]:
    run = Run(home, update_seconds, standby=standby)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def checkpoints(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("step-*"))


def listening(processes: Iterable[int]) -> list[str]:
    """Return the addresses on which processes listen, as /proc/net writes them."""
    sockets = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(str(descriptor.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    return found


def check_listeners(run: Run, home: Path) -> None:
    """Check that a run whose ranks have joined listens on loopback addresses 127.x alone."""
    addresses = listening([run.process.pid, *processes_of(home)])
    assert len(addresses) >= 4, "the agent and its start barrier, two stores"
    assert [one for one in addresses if len(one) != 8 or not one.endswith("7F")] == []


def test_local_run_listens_on_loopback_only_and_saves_once_on_ctrl_c(tmp_path: Path) -> None:
    with started(tmp_path, 0.01, standby=True) as run:
        wait_until((tmp_path / "1.txt").exists, "an update is complete", SECONDS)
        check_listeners(run, tmp_path)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(SECONDS) == 130, run.output()
    assert "Interrupted: saving a checkpoint (press Ctrl-C again to stop at once)" in run.output()
    found = re.search(r"Stopped: update (\d+) is saved\. Run the same command", run.output())
    assert found is not None, run.output()
    step = int(found[1])
    assert checkpoints(tmp_path) == [f"step-{step:08}.attempt-1"]

    # The update in progress takes so long that nothing can be saved before the second signal.
    with started(tmp_path, 30, standby=False) as again:
        again.wait_for("all ranks of attempt 2 are training")
        check_listeners(again, tmp_path)
        again.process.send_signal(signal.SIGINT)
        again.wait_for("Interrupted: ")
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(SECONDS) == 130, again.output()
    assert f"Stopped at once: nothing was saved since update {step}." in again.output()
    assert checkpoints(tmp_path) == [f"step-{step:08}.attempt-1"]
    wait_until(lambda: not processes_of(tmp_path), "no process of a pod is left", SECONDS)
    check_page(tmp_path / NAME, step)


def check_page(folder: Path, step: int) -> None:
    """Check the report of a run that was stopped, resumed, and stopped by a second Ctrl-C."""
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
