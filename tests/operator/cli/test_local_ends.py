"""Tests of local runs that end without training: nothing is left to train, or the disk failed."""

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ddp_operator.api.status import FailureStatus
from ddp_operator.cli import local_run
from ddp_operator.cli.local_run import LocalRun, run_locally
from ddp_operator.client.run_folder import JOB_FILE, EarlierRun, load_job
from tests.operator.client.test_earlier_run import CHECKPOINT, completed_job, document
from tests.operator.support import NOW, active_job, job_manifest


@pytest.mark.parametrize("whole", [True, False])
async def test_finished_run_is_verified_and_reported_without_a_start_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    started: list[Path] = []

    async def check(*_: object) -> bool:
        return whole

    class Run(LocalRun):
        async def run(self) -> int:
            started.append(self._home)
            await self._cluster.close()
            return 7

    monkeypatch.setattr(local_run, "_is_whole", check)
    monkeypatch.setattr(local_run, "LocalRun", Run)
    manifest = job_manifest(nodes=2, checkpoint=CHECKPOINT)
    uid = local_run._with_uid(manifest)["metadata"]["uid"]
    finished = document(completed_job(tmp_path))
    finished["metadata"]["uid"] = uid
    home = tmp_path / "digits"
    home.mkdir()
    (home / JOB_FILE).write_text(json.dumps(finished))
    out = io.StringIO()
    code = await run_locally(manifest, {}, home, Console(file=out))
    assert (code, started) == ((0, []) if whole else (7, [home]))
    shown = "Nothing is left to train: the checkpoint of update 120 passed its checks."
    assert (shown in out.getvalue(), "  attempts: 1" in out.getvalue()) == (whole, whole)


FAILS_ONCE = """
import json, pathlib, sys, time
import torch.distributed as dist

def trains(status):
    found = {one["type"]: one["status"] for one in status.get("conditions", [])}
    return found.get("Rendezvoused") == "True"

dist.init_process_group("gloo")
mark, job = map(pathlib.Path, sys.argv[1:])
if not mark.exists():
    mark.touch()
    while not trains(json.loads(job.read_text())["status"]):
        time.sleep(0.05)
    sys.exit("the disk is gone")
"""
"""A script that fails once, as soon as the operator has seen it train."""


@pytest.mark.slow
async def test_message_says_that_a_command_may_start_from_the_beginning(
    tmp_path: Path,
) -> None:
    script, home = tmp_path / "script.py", tmp_path / "run"
    script.write_text(FAILS_ONCE)
    command = [sys.executable, str(script), str(tmp_path / "failed"), str(home / JOB_FILE)]
    job = job_manifest(nodes=1, procsPerNode=1, command=command)
    out = io.StringIO()
    run = LocalRun(job, {}, home, Console(file=out, width=200), verbose=False)
    assert await run.run() == 0, out.getvalue()
    sentence = "the command has reported no checkpoint: it may start from the beginning"
    assert f"NoCheckpoint: {sentence}" in out.getvalue()


async def test_local_run_ends_when_its_volume_fails(tmp_path: Path) -> None:
    out = io.StringIO()
    job = job_manifest(nodes=2, checkpoint=CHECKPOINT)
    run = LocalRun(job, {}, tmp_path, Console(file=out, width=200), verbose=False)
    try:
        failure = FailureStatus(
            attempt=1, reason="VolumeFailed", message="No space left on device.", time=NOW
        )
        status = active_job(attempt=2, status={"last_failure": failure}).status
        shown = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        run._cluster.put_job({**run._manifest, "status": shown})
        await asyncio.sleep(0)  # The run suspends the job in its next turn of the loop.
        assert (await run._cluster.get_job(run._key) or {})["spec"]["suspend"] is True
        assert run._conclude() == 1
    finally:
        await run._cluster.close()
    sentence = f"Failed: No space left on device. Make room for {tmp_path}, then run the same"
    assert sentence in out.getvalue()
    kept = load_job(tmp_path)
    assert isinstance(kept, EarlierRun)
    assert kept.manifest["status"]["conditions"]
