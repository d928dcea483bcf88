"""Tests that peers name a rank that stops while several gradient buckets are being reduced."""

import re
import signal
import time
from pathlib import Path

import pytest

from ddp_wire.activity import Activity, read_activities
from tests.trainer.rank_processes import Gang, Launcher

pytestmark = pytest.mark.slow
TIMEOUT = 5
MODEL = ["--task=ddp_trainer.tasks.gpt:build", "--task.width=256", "--task.layers=3"]
RUN = ["--task.context=16", "--global_batch=6", "--max_steps=100000", "--log.every_steps=1000"]
BUCKETS = ["--parallel.bucket_mb=1", f"--parallel.timeout_seconds={TIMEOUT}", "--device=cpu"]
STORE = "rank 0, whose process hosts the store,"


def stop_in_backward(launcher: Launcher, beats: Path, rank: int) -> Gang:
    """Start three ranks, and stop one of them in the backward pass of a later update."""
    folder = {"DDP_BEATS_DIR": str(beats), "DDP_ATTEMPT": "1"}
    gang = launcher.train(*MODEL, *RUN, *BUCKETS, world=3, **folder)

    def trains() -> bool:
        record = read_activities(beats).get(rank)
        return record is not None and record.step > 5 and record.activity is Activity.BACKWARD

    gang.wait_until(trains, timeout=60)
    gang.signal(rank, signal.SIGSTOP)
    return gang


def assert_peers_name(gang: Gang, rank: int, sentence: str) -> None:
    for peer in {0, 1, 2} - {rank}:
        gang.processes[peer].join(60)
        assert gang.processes[peer].exitcode == 1
        waited = r"waited \d+\.\d s in all_reduce of \[\d+\] \(number (\d+)\)"
        message = rf"rank {peer}, update (\d+): {waited}, but {sentence}"
        *warnings, last = gang.err(peer).splitlines()  # torch warns of a store that has ended.
        found = re.fullmatch(message, last)
        assert found, gang.err(peer)
        assert "Traceback" not in "".join(warnings)
        # DDP waits for the buckets only when it has begun to reduce all of them.
        assert int(found[2]) > 5 * int(found[1]), "several buckets in each update"


@pytest.mark.parametrize(
    ("rank", "sentence"), [(1, "rank 1 did not join"), (0, f"{STORE} does not answer")]
)
def test_peers_name_a_rank_that_stops(
    launcher: Launcher, tmp_path: Path, rank: int, sentence: str
) -> None:
    gang = stop_in_backward(launcher, tmp_path, rank)
    assert_peers_name(gang, rank, sentence)


def test_peers_name_a_rank_0_that_ends_after_a_long_wait(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = stop_in_backward(launcher, tmp_path, 0)

    def wait_for_long() -> bool:
        peers = [record for rank, record in read_activities(tmp_path).items() if rank > 0]
        return all(time.monotonic() - peer.since > 0.7 * TIMEOUT for peer in peers)

    gang.wait_until(wait_for_long)
    gang.signal(0, signal.SIGKILL)
    assert_peers_name(gang, 0, f"{STORE} has ended")
