"""Open files that the agent of node 0 needs."""

from pathlib import Path

import pytest

from ddp_agent.network.barriers import Barriers
from ddp_wire.contract import Env
from tests.agent.support import config


@pytest.mark.parametrize(("limit", "warns"), [(419, True), (420, False)])
def test_node_0_warns_if_its_job_may_need_more_open_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    warns: bool,
) -> None:
    monkeypatch.setattr("ddp_agent.network.barriers.open_file_limit", lambda: limit)
    env = {Env.NODES: "100", Env.BARRIER_PORT: "0", Env.AGENT_BIND: "127.0.0.1"}
    Barriers(config(tmp_path, **env)).leave()
    expected = (
        "the agent of node 0 needs up to 420 open files for a job of 100 nodes, but the limit"
    )
    assert [one.getMessage().startswith(expected) for one in caplog.records] == [True] * warns
