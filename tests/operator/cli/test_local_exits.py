"""Local runs complete although ranks crash or hang while they exit after their work."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddp_operator.api.base import API_VERSION, KIND
from tests.operator.cli.test_local_goodput import RecordedRun

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


async def completed(home: Path, **spec: Any) -> str:
    """Run a job of two nodes to its completion in the first attempt. Return its output."""
    given = {"nodes": 2, "procsPerNode": 1, "maxRestarts": 0, "hang": {"exitSeconds": 2}}
    metadata = {"name": "exiting", "namespace": "default"}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": given | spec}
    out = io.StringIO()
    run = RecordedRun(job, {}, home, Console(file=out, width=1000), verbose=False)
    assert await run.run() == 0, out.getvalue()
    assert run.status.attempt == 1, out.getvalue()
    return out.getvalue()


async def test_crash_and_hang_after_the_training_cause_no_new_attempt(tmp_path: Path) -> None:
    shown = await completed(
        tmp_path,
        task="tests.operator.cli.exiting_task:build",
        config={"device": "cpu", "epochs": 1, "global_batch": 16},
        env=[{"name": "PYTHONPATH", "value": str(ROOT)}],
        checkpoint={"claimName": "shared"},
    )
    assert "rank 0 on exiting-0 was killed by SIGABRT after its work was done" in shown
    assert "rank 1 on exiting-1 did not exit within" in shown
    assert "it waits for a thread that does not end" in shown
    assert ", exiting " in shown, "the ledger"


@pytest.mark.parametrize("standby", [True, pytest.param(False, marks=pytest.mark.sweep)])
async def test_rank_of_a_command_that_does_not_exit_is_reported(
    tmp_path: Path, standby: bool
) -> None:
    script = str(Path(__file__).with_name("exiting_script.py"))
    shown = await completed(tmp_path, command=["python", script], standby=standby)
    assert "rank 1 on exiting-1 did not exit within" in shown
    assert ("exiting_script.py" in shown) == standby, "only a forked rank shows its stack"
