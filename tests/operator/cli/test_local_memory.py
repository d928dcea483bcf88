"""Local runs whose ranks keep in memory parts of a state, or the state of a script."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.cli.local_run import LocalRun
from tests.operator.cli.killed_task import ALL

ROOT = Path(__file__).parents[3]
STEPS, FAILS_AFTER = 80, 50


def logs(home: Path) -> str:
    """Return the output of all nodes."""
    return "".join(path.read_text() for path in (home / "logs").glob("*.log"))


async def finished(home: Path, spec: dict[str, Any]) -> None:
    """Run a job of two nodes with two ranks each to its end."""
    common = {
        "nodes": 2,
        "procsPerNode": 2,
        "maxRestarts": 1,
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "checkpoint": {"claimName": "shared", "everySteps": 1000},
    }
    metadata = {"name": "memory", "namespace": "default"}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": common | spec}
    run = LocalRun(job, {}, home, Console(file=io.StringIO()), verbose=False)
    assert await run.run() == 0, logs(home)


def final_bytes(home: Path) -> dict[str, bytes]:
    newest = max(home.rglob("step-*"), key=lambda path: path.name)
    return {n: (newest / n).read_bytes() for n in ("model.safetensors", "optimizer.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "fsdp2"])
async def test_run_whose_ranks_hold_parts_repeats_no_update_after_an_exception(
    tmp_path: Path, strategy: str
) -> None:
    def spec(**task: Any) -> dict[str, Any]:
        config = {"max_steps": STEPS, "global_batch": 8, "parallel": {"strategy": strategy}}
        return {"task": "tests.trainer.sample_tasks:build", "config": config | {"task": task}}

    fails = {"die_rank": 3, "die_after": FAILS_AFTER, "die_how": "raise"}
    await finished(tmp_path / "broken", spec(**fails))
    (step,) = re.findall(
        r"resumed at step (\d+) of 80 from the state that all ranks kept", logs(tmp_path / "broken")
    )
    assert int(step) >= FAILS_AFTER - 1  # One pass may be a rehearsal.
    await finished(tmp_path / "whole", spec())
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp2"])
async def test_run_whose_ranks_are_all_killed_at_once_continues_from_memory(
    tmp_path: Path, strategy: str
) -> None:
    def spec(home: str, kills: list[list[int]]) -> dict[str, Any]:
        (tmp_path / home).mkdir()
        config: dict[str, Any] = {
            "max_steps": STEPS,
            "global_batch": 8,
            "parallel": {"strategy": strategy},
            "checkpoint": {"memory_every_steps": 4},
            "task": {"kills": kills, "record_dir": str(tmp_path / home)},
        }
        return {"task": "tests.operator.cli.killed_task:build", "config": config}

    broken = spec("broken-counts", [[ALL, FAILS_AFTER]])
    await finished(tmp_path / "broken", broken)
    (step,) = re.findall(r"resumed at step (\d+) of 80 from the state", logs(tmp_path / "broken"))
    assert int(step) % 4 == 1
    assert FAILS_AFTER - 2 * 4 <= int(step) <= FAILS_AFTER
    await finished(tmp_path / "whole", spec("whole-counts", []))
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


SCRIPT = """
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_trainer import report

dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
fails = sys.argv[1] == "killed" and os.environ["DDP_ATTEMPT"] == "1"
torch.manual_seed(0)
bare = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(bare.parameters(), lr=0.05, momentum=0.9)
if (found := report.kept()) is not None:
    step, saved = found
    bare.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
print(f"begins at {step}", flush=True)
model = DistributedDataParallel(bare)
report.progress(step, 80)
with report.keep(lambda: {"model": bare.state_dict(), "optimizer": optimizer.state_dict()}, step):
    while step < 80:
        if fails and rank == 3 and step == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        draw = torch.Generator().manual_seed(step * 4 + rank)
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        with report.update(step + 1):
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        report.progress(step)
if rank == 0:
    folder = pathlib.Path(os.environ["DDP_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save([bare.state_dict(), optimizer.state_dict()], folder / "end.pt")
dist.barrier()
del model, optimizer
dist.destroy_process_group()
"""


@pytest.mark.slow
async def test_script_repeats_no_update_after_the_loss_of_a_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    await finished(tmp_path / "broken", {"command": ["python", str(script), "killed"]})
    begins = re.findall(r"begins at (\d+)", logs(tmp_path / "broken"))
    assert sorted(begins) == ["0"] * 4 + ["50"] * 4
    await finished(tmp_path / "whole", {"command": ["python", str(script), "whole"]})
    ends = [torch.load(next((tmp_path / n).rglob("end.pt"))) for n in ("broken", "whole")]
    assert torch.equal(ends[0][0]["weight"], ends[1][0]["weight"])
    assert torch.equal(*(end[1]["state"][0]["momentum_buffer"] for end in ends))
