"""Patches of torchrun for the end of an attempt."""

import sys
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.utils import store as store_util

from ddp_agent.launcher import exit_patches
from ddp_wire.contract import Env

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as the launcher of a node")

TORCHRUNS_SECONDS = 0.05
"""Seconds after which torchrun's nodes stop waiting for each other, in place of 300 s."""


@pytest.fixture
def _patched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Apply the patches until the end of the test."""
    for owner, name in (
        (LocalElasticAgent, "_monitor_workers"),
        (api.SimpleElasticAgent, "_exit_barrier"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setenv(Env.BEATS_DIR, str(tmp_path))
    monkeypatch.setenv(Env.ATTEMPT, "1")

    def describe(_rank: int, _failure: Any) -> Any:
        raise AssertionError("no rank fails")

    exit_patches.apply(describe)


def at_its_end(store: TCPStore) -> Thread:
    """Start the wait at the end of an attempt on one of two nodes, whose ranks have exited."""
    node: Any = LocalElasticAgent.__new__(LocalElasticAgent)
    node._worker_group = SimpleNamespace(state=api.WorkerState.SUCCEEDED, group_world_size=2)
    node._store, node._exit_barrier_timeout = store, TORCHRUNS_SECONDS
    thread = Thread(target=node._exit_barrier, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.usefixtures("_patched")
def test_node_waits_for_other_nodes_longer_than_unpatched_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gave_up, wait = Event(), store_util.barrier

    def barrier(**options: Any) -> None:
        try:
            wait(**options)
        except RuntimeError:
            gave_up.set()

    monkeypatch.setattr(store_util, "barrier", barrier)
    host: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    guest: Any = TCPStore("127.0.0.1", host.port, is_master=False)
    first = at_its_end(host)
    assert not gave_up.wait(10 * TORCHRUNS_SECONDS), "the ranks of the other node would fail"
    assert guest.check([exit_patches._LEFT_KEY])
    second = at_its_end(guest)
    first.join(20)
    second.join(20)
    assert not first.is_alive()
    assert not second.is_alive()
    assert not gave_up.is_set()
