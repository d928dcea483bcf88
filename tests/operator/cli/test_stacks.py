"""`ddpjob stacks`: where the ranks of a local run are now."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_operator.cli.main import main
from ddp_operator.client import local
from ddp_operator.client.run_folder import save_job
from ddp_wire.stacks import without_launcher
from tests.operator.client.test_cluster_jobs import running

PROGRAM = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
def waits_here():
    time.sleep(300)
waits_here()
"""
STACKS = """
Thread 0x01 (most recent call first):
  File "/usr/lib/python3/threading.py", line 9 in wait

Current thread 0x02 (most recent call first):
  File "/code/train.py", line 4 in step
  File "/x/ddp_agent/launcher/entry.py", line 86 in _run
  File "/x/torch/distributed/launcher/api.py", line 1 in __call__
"""


def test_frames_of_the_launcher_are_left_out() -> None:
    shown = without_launcher(STACKS)
    assert shown.splitlines()[-1] == '  File "/code/train.py", line 4 in step'
    assert "threading.py" in shown


def test_run_without_ranks_is_named(tmp_path: Path) -> None:
    save_job(tmp_path / "digits", running())
    ended = CliRunner().invoke(main, ["stacks", "digits", "--dir", str(tmp_path)])
    assert (ended.exit_code, ended.stderr) == (
        2,
        "ddpjob: digits is Suspended, so it has no ranks now\n",
    )


@pytest.mark.slow
def test_all_ranks_of_a_real_run_show_their_line_twice(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    manifest = {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "waits"},
        "spec": {"nodes": 2, "procsPerNode": 2, "command": ["python", str(program)]},
    }
    job = local(tmp_path / "runs").submit(manifest)
    try:
        job.wait("Running", timeout=200)
        command = ["stacks", "waits", "--dir", str(tmp_path / "runs"), "-o", "json"]
        for _ in range(2):
            found = json.loads(CliRunner().invoke(main, command).stdout)
            assert [one["rank"] for one in found] == [0, 1, 2, 3]
            for one in found:
                assert one["stacks"].count("waits_here") == 1
                assert "ddp_agent" not in one["stacks"]
        assert job.state == "Running"
    finally:
        job.delete()
