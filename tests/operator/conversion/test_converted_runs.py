"""Converted jobs that run on this machine, from the file to the result of their ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([1 + dist.get_rank()])
dist.all_reduce(total)
with open(os.path.join(sys.argv[1], f"rank-{dist.get_rank()}"), "w") as file:
    file.write(f"{int(total)} of {dist.get_world_size()}")
dist.destroy_process_group()
"""
PYTORCH_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: torchrun-cpu}}
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              command: [torchrun, {script}, {folder}]
    Worker: *pod
"""
TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: two-nodes}}
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [torchrun, {script}, {folder}]
"""


def ddpjob(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_operator.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("text", [PYTORCH_JOB, TRAIN_JOB], ids=["PyTorchJob", "TrainJob"])
def test_converted_job_runs_with_all_its_ranks(tmp_path: Path, text: str) -> None:
    script = tmp_path / "demo.py"
    script.write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(text.format(script=script, folder=tmp_path))
    converted = ddpjob(tmp_path, "convert", "job.yaml")
    assert converted.returncode == 0, converted.stderr
    (tmp_path / "ddpjob.yaml").write_text(converted.stdout)
    done = ddpjob(tmp_path, "run", "ddpjob.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    results = [path.read_text() for path in sorted(tmp_path.glob("rank-*"))]
    assert results == ["10 of 4"] * 4


def test_notes_are_on_standard_error_and_the_job_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TRAIN_JOB.format(script="a.py", folder="b"))
    done = ddpjob(tmp_path, "convert", "job.yaml")
    assert done.returncode == 0
    assert done.stdout.startswith("apiVersion: ddp-trainer.dev/v1alpha1\nkind: DDPJob\n")
    assert "two-nodes: the runtime torch-distributed is not in the file" in done.stderr


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("kind: Pod", [], "must hold a PyTorchJob or TrainJob, found Pod"),
        (TRAIN_JOB, ["--command", "'"], "must be a command as in a shell"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path, text: str, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "job.yaml").write_text(text.format(script="a.py", folder="b"))
    done = ddpjob(tmp_path, "convert", "job.yaml", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
