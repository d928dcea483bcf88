"""`ddpjob logs` on two real nodes shows each line of each rank once, also when pods are killed."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.support import Job, script_job
from tests.fault_player.faults import delete_pod
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster

CHATTY = """
import os, time, uuid
import torch.distributed as dist
dist.init_process_group("gloo")
process = f"{os.environ['RANK']}-{uuid.uuid4().hex[:8]}"
for number in range(1200):
    print("line", process, number, flush=True)
    time.sleep(0.02)
dist.barrier()
"""
LINES = 1200
RANKS = 4


class Followed:
    """Output of `ddpjob logs -f`."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [*arguments, "-f"], stdout=subprocess.PIPE, text=True, env=environment
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def count(self, attempt: int) -> int:
        """Return the number of lines of the ranks in an attempt."""
        return sum(counted(line for line in self.lines if line["attempt"] == attempt).values())

    def wait(self) -> int:
        """Return the exit code."""
        code = self._process.wait(60)
        self._thread.join(60)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def counted(lines: Iterable[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Return how often each line of the script is among lines, by process and number."""
    found: Counter[tuple[str, int]] = Counter()
    for line in lines:
        word, _, rest = line["text"].partition(" ")
        if word == "line":
            process, _, number = rest.partition(" ")
            assert number.isdigit(), line
            assert process.startswith(f"{line['rank']}-"), line
            found[process, int(number)] += 1
    return found


def last_numbers(lines: Counter[tuple[str, int]]) -> dict[str, int]:
    """Return the last number of each process. Its lines must begin at 0 and have no gap."""
    last = dict(sorted(lines))
    assert sum(number + 1 for number in last.values()) == len(lines)
    return last


def test_each_line_of_each_rank_is_shown_once_across_two_killed_pods(
    cluster: Cluster, namespace: str
) -> None:
    checkpoint = {"claimName": "training-shared"}
    job = Job.apply(cluster, namespace, script_job("chatty", CHATTY, checkpoint=checkpoint))
    ddpjob = [str(Path(sys.executable).with_name("ddpjob")), "logs", "chatty", "-n", namespace]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    job.wait_for("Running", 120)
    followed = Followed([*ddpjob, "-o", "json"], environment)
    try:
        for attempt, pod in ((1, "chatty-1"), (2, "chatty-0")):
            eventually(lambda n=attempt: followed.count(n) > 400, "lines of the attempt", 120)  # type: ignore[misc]
            delete_pod(job, pod)
        job.wait_for("Completed", 180)
        assert followed.wait() == 0
    finally:
        followed.kill()
    lines = counted(followed.lines)
    assert set(lines.values()) == {1}
    last = last_numbers(lines)
    assert len(last) == 3 * RANKS
    assert list(last.values()).count(LINES - 1) == RANKS

    # Afterwards the volume has the lines of the pods that are gone.
    printed = subprocess.run(
        [*ddpjob, "--copies", "-o", "json"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    copied = counted(map(json.loads, printed.stdout.splitlines()))
    assert set(copied.values()) == {1}
    assert set(copied) <= set(lines)
    # The copy of a killed pod may lack the lines of its last second.
    assert all(number >= last[process] - 100 for process, number in last_numbers(copied).items())
    assert len(last_numbers(copied)) == 3 * RANKS
    assert not [
        one for one in job.kubectl("get", "ddpjobs", "-o", "name").split() if "reader" in one
    ]
