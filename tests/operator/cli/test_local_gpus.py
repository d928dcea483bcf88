"""Test of a local run with NCCL: forked ranks are killed, and new ranks train again."""

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from rich.console import Console

from ddp_wire.contract import AGENT_PORT
from tests.operator.cli.gpu_runs import on_one_gpu
from tests.operator.cli.test_local_goodput import STEPS, RecordedRun, job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

KILLS = [[1, 20], [0, 20]]


async def metrics_with(name: str, address: str) -> str:
    """Return the metrics of an agent once they have a series of this name."""
    url = f"http://{address}:{AGENT_PORT}/metrics"
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    text = await answer.text()
            except aiohttp.ClientError:
                text = ""
            if any(line.startswith(name) for line in text.splitlines()):
                return text
            await asyncio.sleep(0.1)


def on_gpus(home: Path) -> dict[str, Any]:
    made = job(home, KILLS)
    made["spec"]["config"]["device"] = "cuda"
    made["spec"]["gpusPerNode"] = 1
    return made


async def test_killed_ranks_train_again_on_the_same_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_one_gpu(monkeypatch)
    out = io.StringIO()
    run = RecordedRun(on_gpus(tmp_path), {}, tmp_path, Console(file=out), verbose=False)
    scrape = asyncio.ensure_future(
        metrics_with("ddp_train_gpu_memory_allocated_bytes", run._cluster._network.address(0))
    )
    try:
        assert await run.run() == 0, out.getvalue()
        assert scrape.done(), "the agent never showed the memory of a rank"
    finally:
        scrape.cancel()
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
    assert "start cold" not in logs
    assert run.status.attempt == len(KILLS) + 1
    assert run.status.goodput is not None
    assert run.status.goodput.reached_step == STEPS
    assert run.status.last_recovery is not None
    print(f"last recovery {run.status.last_recovery.summary}")
    gpus = [line for line in scrape.result().splitlines() if line.startswith("ddp_gpu_")]
    print("\n".join(gpus))
    for value in ("utilization_ratio", "memory_used_bytes", "temperature_celsius", "power_watts"):
        assert any(line.startswith(f"ddp_gpu_{value}") for line in gpus), value
