"""Messages of ranks whose collectives time out or lose a peer."""

import os
import pickle
import re
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C import _distributed_c10d

from ddp_agent.failures import describe
from ddp_trainer.ranks import flight_recorder, timeouts
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.flight_recorder import Wait
from tests.trainer.rank_processes import Launcher

TASK = "--task=sample_tasks:build"
STALL = [TASK, "--global_batch=6", "--task.die_rank=1"]
SOON = "--parallel.timeout_seconds=2"


@pytest.mark.slow
def test_timeout_names_the_missing_rank(launcher: Launcher, tmp_path: Path) -> None:
    die = ["--task.die_how=hang", "--task.die_after=4"]
    gang = launcher.train(*STALL, *die, SOON, world=3, DDP_CHECKPOINT_DIR=str(tmp_path))
    folder = tmp_path / flight_recorder.FOLDER
    for rank in (0, 2):
        gang.processes[rank].join(60)
        assert gang.processes[rank].exitcode == 1
        waited = r"waited 2\.. s in all_reduce of \[212\] \(number \d+\)"
        assert re.fullmatch(
            rf"rank {rank}, update 4: {waited}, but rank 1 did not join;"
            rf" recorded collectives are in {folder}\n",
            gang.err(rank),
        )
        record = pickle.loads((folder / f"rank-{rank}").read_bytes())  # noqa: S301 - written by torch
        assert record["entries"][-1]["profiling_name"] == "gloo:all_reduce"
    assert gang.processes[1].is_alive()


@pytest.mark.slow
def test_timeout_reports_different_collectives(launcher: Launcher) -> None:
    die = ["--task.die_how=stray", "--task.die_after=3"]
    gang = launcher.train(*STALL, *die, SOON, world=2)
    assert gang.wait() == [1, 1]
    ours, theirs = r"all_reduce of \[212\] \(number \d+\)", r"broadcast of \[3\] \(number \d+\)"
    tail = "all ranks must call the same collectives in the same order\n"
    assert re.fullmatch(
        rf"rank 0, update 4: waited 2\.. s in {ours}, but rank 1 waited in {theirs}: {tail}",
        gang.err(0),
    )
    assert re.fullmatch(
        rf"rank 1, update 4: waited 2\.. s in {theirs}, but rank 0 waited in {ours}: {tail}",
        gang.err(1),
    )


def test_rank_0_keeps_its_store_until_all_waiting_ranks_have_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: Any = _distributed_c10d.HashStore()
    monkeypatch.setattr(timeouts, "PEER_SECONDS", 0.0)
    default = "torch.distributed.distributed_c10d._get_default_store"
    monkeypatch.setattr(default, lambda: store)
    store.append("ddp-trainer/stalled", "2 in broadcast of [3] (number 1)\n")
    waits = timeouts._exchange_waits(0, "in all_reduce of [2] (number 1)")
    assert set(waits) == {0, 2}
    host = threading.Thread(target=timeouts._wait_for_readers, args=(len(waits),), daemon=True)
    host.start()
    host.join(0.3)
    assert host.is_alive(), "rank 2 has not read yet"
    timeouts._exchange_waits(2, "in broadcast of [3] (number 1)")
    host.join(10.0)
    assert not host.is_alive()


@pytest.mark.parametrize(("rank", "expected"), [(0, [2]), (2, [])])
def test_only_rank_0_waits_for_the_readers_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, rank: int, expected: list[int]
) -> None:
    own, waited_for = "in all_reduce of [2] (number 1)", list[int]()
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(timeouts, "newest_wait", lambda: Wait(own, 2.0, 2.0))
    monkeypatch.setattr(timeouts, "_exchange_waits", lambda *_: {0: own, 2: own})
    monkeypatch.setattr(timeouts, "dump", lambda *_: None)
    monkeypatch.setattr(timeouts, "_wait_for_readers", waited_for.append)
    error = RuntimeError("[/gloo/transport/pair.cc:1] Timed out waiting 2000ms")
    ranks = Ranks(rank=rank, world_size=3, local_rank=rank, local_world_size=3)
    with pytest.raises(timeouts.StalledError, match="rank 1 did not join"):
        timeouts.raise_if_peer_failed(error, ranks, f"rank {rank}")
    assert waited_for == expected


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Store of a group of three ranks. This rank has waited for its whole timeout."""
    store: Any = _distributed_c10d.HashStore()
    monkeypatch.setattr(timeouts, "PEER_SECONDS", 0.0)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(timeouts, "newest_wait", lambda: Wait("in all_reduce", 2.0, 2.0))
    monkeypatch.setattr(timeouts, "dump", lambda *_: None)
    default = "torch.distributed.distributed_c10d._get_default_store"
    monkeypatch.setattr(default, lambda: store)
    return store


def raised_in(file: str, text: str) -> RuntimeError:
    """Return an error raised by code with this file name."""
    code = compile("raise RuntimeError(text)", file, "exec")
    try:
        exec(code, {"text": text})  # noqa: S102 (the code above)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("text", ["Application timeout caused pair closure", "new in torch 9"])
def test_missing_rank_is_found_without_the_text_of_the_error(entries: Any, text: str) -> None:
    entries.append("ddp-trainer/stalled", "2 in all_reduce\n")
    error = raised_in("/site-packages/torch/autograd/graph.py", text)
    ranks = Ranks(rank=1, world_size=3, local_rank=1, local_world_size=3)
    with pytest.raises(timeouts.StalledError, match="but rank 0 did not join"):
        timeouts.raise_if_peer_failed(error, ranks, "rank 1")
    assert entries.get("ddp-trainer/stalled") == b"2 in all_reduce\n1 in all_reduce\n"


def test_timeout_of_a_collective_in_the_users_task_counts_as_a_stall(entries: Any) -> None:
    text = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:511] new in torch 9"
    error = raised_in("/home/me/task.py", text)
    with pytest.raises(timeouts.StalledError, match="but ranks 0, 2 did not join"):
        timeouts.raise_if_peer_failed(error, Ranks(1, 3, 1, 3), "rank 1")
    assert entries.get("ddp-trainer/stalled") == b"1 in all_reduce\n"


def test_unknown_error_of_a_collective_before_its_timeout_is_secondary(
    entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "newest_wait", lambda: Wait("in all_reduce", 0.2, 2.0))
    text = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:511] new in torch 9"
    error = raised_in("/site-packages/torch/autograd/graph.py", text)
    timeouts.raise_if_peer_failed(error, Ranks(1, 3, 1, 3), "rank 1")  # It raises nothing.
    assert entries.get("ddp-trainer/stalled") == b"1 ended\n"
    printed = "".join(traceback.format_exception(error))
    assert describe(attempt=0, rank=1, returncode=1, text=printed, at=0).secondary


@pytest.mark.parametrize(
    "error", [raised_in("/home/me/task.py", "no such flower"), ValueError("no such flower")]
)
def test_rank_that_failed_by_its_own_error_is_not_reported_as_missing(
    entries: Any, error: Exception
) -> None:
    one, two = (Ranks(rank, 3, rank, 3, launched=True) for rank in (1, 2))
    timeouts.raise_if_peer_failed(error, one, "rank 1")  # It raises nothing.
    assert entries.get("ddp-trainer/stalled") == b"1 ended\n"
    entries.append("ddp-trainer/stalled", "2 in all_reduce\n")
    late = RuntimeError("[/gloo/transport/unbound_buffer.cc:1] Timed out waiting 2000ms")
    with pytest.raises(timeouts.StalledError, match="but rank 0 did not join"):
        timeouts.raise_if_peer_failed(late, two, "rank 2")
    waits = {0: "in all_reduce", 1: timeouts._ENDED, 2: "in all_reduce"}
    assert timeouts._diagnosis(waits, two, "in all_reduce") == "but rank 1 had ended"


@pytest.mark.usefixtures("entries")
def test_rank_0_is_named_when_the_store_in_its_process_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(timeouts, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(timeouts, "_exchange_waits", lambda *_: never.wait(10.0))
    late = RuntimeError("[/gloo/transport/unbound_buffer.cc:1] Timed out waiting 2000ms")
    expected = "but rank 0, whose process hosts the store, does not answer"
    with pytest.raises(timeouts.StalledError, match=expected):
        timeouts.raise_if_peer_failed(late, Ranks(2, 3, 2, 3, launched=True), "rank 2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(timeouts.StalledError, match="could not read from the store"):
        timeouts.raise_if_peer_failed(late, Ranks(2, 3, 2, 3, launched=True), "rank 2")
    never.set()


@pytest.mark.usefixtures("entries")
def test_rank_0_is_named_when_the_store_has_ended_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LostStore:
        def append(self, *_: str) -> None:
            raise RuntimeError("Connection reset by peer")

    default = "torch.distributed.distributed_c10d._get_default_store"
    monkeypatch.setattr(default, LostStore)
    late = RuntimeError("[/gloo/transport/unbound_buffer.cc:1] Timed out waiting 2000ms")
    expected = "but rank 0, whose process hosts the store, has ended"
    with pytest.raises(timeouts.StalledError, match=expected):
        timeouts.raise_if_peer_failed(late, Ranks(2, 3, 2, 3, launched=True), "rank 2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(timeouts.StalledError, match="could not read from the store"):
        timeouts.raise_if_peer_failed(late, Ranks(2, 3, 2, 3, launched=True), "rank 2")


def test_timeout_outside_collectives_is_not_a_stall(launcher: Launcher) -> None:
    die = ["--task.die_how=late", "--task.die_after=3"]
    gang = launcher.train(*STALL, *die, world=2)
    assert gang.wait() == [1, 1]
    assert gang.err(1).startswith("rank 1, update 4: RuntimeError: the file server timed out\n")
    assert "Traceback" in gang.err(1)
    assert "did not join" not in gang.err(1)


@pytest.mark.parametrize("from_environment", [True, False])
def test_debug_level_detail_does_not_crash_torch(
    launcher: Launcher, *, from_environment: bool
) -> None:
    environ = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if from_environment else {}
    debug = "off" if from_environment else "detail"
    gang = launcher.train(TASK, "--max_steps=3", f"--parallel.debug={debug}", world=2, **environ)
    assert gang.wait() == [0, 0], gang.err(0)


def test_timeout_of_all_ranks_blames_the_network() -> None:
    ranks = Ranks(0, 2, 0, 2, launched=True)
    diagnosis = timeouts._diagnosis({0: "in broadcast", 1: "in broadcast"}, ranks, "in broadcast")
    assert diagnosis == "as did all other ranks: check the network between them"


def test_long_list_of_missing_ranks_is_cut() -> None:
    ranks = Ranks(0, 20, 0, 8, launched=True)
    assert timeouts._diagnosis({0: "", 1: ""}, ranks, "") == (
        "but ranks 2, 3, 4, 5, 6, 7, 8, 9 and 10 more did not join"
    )


@pytest.mark.parametrize(
    "how",
    [
        "Connection closed by peer [10.0.0.2]:4711",
        "Read error [10.0.0.2]:4711: Connection reset by peer",
        "writev [10.0.0.2]:4711: Broken pipe",
    ],
)
def test_agent_classifies_the_loss_of_a_peer_as_a_secondary_failure(how: str) -> None:
    advice = ". This is typically caused by a remote worker crashing."
    error = RuntimeError(
        f"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] {how}{advice}"
    )
    with pytest.raises(timeouts.LostPeerError) as raised:
        timeouts.raise_if_peer_failed(error, Ranks(), "rank 0, update 6")
    assert str(raised.value) == f"rank 0, update 6: lost another rank: {how}"
    assert describe(attempt=0, rank=0, returncode=1, text=str(raised.value), at=0).secondary


def test_unrelated_errors_are_not_taken_for_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(flight_recorder.PREFIX, raising=False)
    # Without a process group even a timeout of gloo is no stall.
    timeouts.raise_if_peer_failed(RuntimeError("[/gloo/pair.cc:1] Timed out"), Ranks(), "rank 0")
    timeouts.raise_if_peer_failed(RuntimeError("Connection closed by peer"), Ranks(), "rank 0")
    assert not dist.is_initialized()
    assert flight_recorder.PREFIX not in os.environ
