"""Init steps of a job without a cluster: processes of this machine, before the ranks."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ddp_operator.api.job import InvalidJobError
from ddp_operator.cli.local_run import run_locally
from ddp_operator.client.run_folder import load_job
from tests.operator.support import job_manifest

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "init-steps.yaml"
FAILS = "import os, sys; print('try', os.environ['DDP_INIT_TRY']); sys.exit('no such host')"


async def run(manifest: dict[str, Any], home: Path) -> tuple[int, str]:
    """Run a job. Return the exit code and the output."""
    output = io.StringIO()
    code = await run_locally(manifest, {}, home, Console(file=output, width=300))
    return code, output.getvalue()


async def test_step_that_fails_too_often_fails_the_run_before_any_rank(tmp_path: Path) -> None:
    step = {"name": "fetch", "command": ["python", "-c", FAILS], "maxRetries": 1}
    code, output = await run(job_manifest(command=["false"], init=[step]), tmp_path)
    assert code == 1
    assert "init step fetch failed: it ended with exit code 1: no such host" in output
    logs = sorted(file.name for file in (tmp_path / "logs").iterdir())
    assert logs == ["digits-init-fetch-1.log", "digits-init-fetch-2.log"]
    assert (tmp_path / "logs" / logs[1]).read_text("utf-8").startswith("try 2\n")


async def test_missing_program_of_a_step_is_named(tmp_path: Path) -> None:
    step = {"name": "fetch", "image": "any:1", "command": ["no-such-program"], "maxRetries": 0}
    sentence = "spec.init: fetch: there is no program 'no-such-program' on this machine"
    with pytest.raises(InvalidJobError, match=sentence):
        await run(job_manifest(command=["false"], init=[step]), tmp_path)


@pytest.mark.slow
async def test_sample_prepares_its_data_once_for_two_runs(tmp_path: Path) -> None:
    manifest = yaml.safe_load(SAMPLE.read_text("utf-8"))
    manifest["metadata"]["namespace"] = "default"
    code, output = await run(manifest, tmp_path)
    assert code == 0, output
    assert "rank 0 read 25 parts; all parts add up to 4950" in output
    earlier = load_job(tmp_path)
    assert earlier is not None
    assert earlier.job is not None
    assert earlier.job.status.init is not None
    assert earlier.job.status.init.completed == 1
    assert len(list((tmp_path / "volumes" / "init-steps-checkpoints").rglob("*.txt"))) == 100
    code, output = await run(manifest, tmp_path)
    assert code == 0, output
    assert "init step" not in output
