"""Local runs in which one rank hangs, with gloo and with NCCL: the status names the rank."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ddp_operator.api.base import API_VERSION, KIND
from tests.cluster.test_hangs import WAYS
from tests.operator.cli.gpu_runs import on_one_gpu
from tests.operator.cli.test_local_goodput import RecordedRun

ROOT = Path(__file__).parents[3]
GUILTY = 1
"""The rank that hangs."""


def ranks_of(way: str) -> int:
    """Return the number of ranks: three if two ranks cannot show which of them is wrong."""
    return 3 if way == "collective" else 2


def cases() -> list[Any]:
    """Return each way to hang on each device. The cluster tests cover gloo, too."""
    found = []
    for way in WAYS:
        found.append(pytest.param("cpu", way, marks=pytest.mark.sweep, id=f"gloo-{way}"))
        few = 1 < torch.cuda.device_count() < ranks_of(way) or not torch.cuda.is_available()
        skip = pytest.mark.skipif(few, reason=f"neither 1 nor {ranks_of(way)} CUDA devices")
        marks = [skip, pytest.mark.gpu, pytest.mark.slow]
        found.append(pytest.param("cuda", way, marks=marks, id=f"nccl-{way}"))
    return found


def job(device: str, way: str) -> dict[str, Any]:
    """Return a job whose first attempt hangs: with one rank per node, or all on one node.

    Only ranks of different nodes can share one GPU.
    """
    shared = device == "cuda" and torch.cuda.device_count() == 1
    config = {
        "device": device,
        "epochs": 5,
        "global_batch": 8 * ranks_of(way),
        "data": {"workers": 1},
        "eval_every_steps": 1000,
        "task": {"ways": [way], "ranks": [GUILTY]},
    }
    spec = {
        "nodes": ranks_of(way) if shared else 1,
        "procsPerNode": 1 if shared else ranks_of(way),
        "task": "tests.cluster.hanging_task:build",
        "config": config,
        "maxRestarts": 1,
        "hang": {"stepSeconds": 2, "dataSeconds": 2},
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "checkpoint": {"claimName": "shared", "everySteps": 3},
    }
    metadata = {"name": "hanging", "namespace": "default"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("device", "way"), cases())
async def test_status_names_the_rank_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, way: str
) -> None:
    out = io.StringIO()
    hanging = job(device, way)
    if device == "cuda":
        on_one_gpu(monkeypatch)
    run = RecordedRun(hanging, {}, tmp_path, Console(file=out), verbose=False)
    assert await run.run() == 0, out.getvalue()
    first = run.status.attempts[0]
    print(f"{device}, {way}: {first.reason}: {first.message}")
    assert run.status.attempt == 2, out.getvalue()
    assert first.reason == "Hung"
    message = first.message
    if device == "cuda" and way == "collective" and message.startswith("no rank made progress"):
        # All ranks may wait in the same later collective of the default process group. Then the
        # record of that group names no rank, and above all no innocent one.
        return
    pod = f"hanging-{GUILTY // hanging['spec']['procsPerNode']}"
    assert message.startswith(f"rank {GUILTY} on {pod} made no progress")
    assert WAYS[way] in message
