"""Checkpoints on the claim of a cluster, which a temporary job reads.

The reader's command really runs, on this machine in place of the pod.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.client import ClusterError, RequestError, connect
from ddp_operator.client import claim_reader as module
from ddp_operator.client.checkpoints import RunCheckpoints, checkpoints_of, download
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import running, summary

CHECKPOINT = {"name": "step-7.attempt-1", "step": 7, "state": "whole"}
FOUND = json.dumps({"checkpoints": [CHECKPOINT], "start": CHECKPOINT["name"]}, indent=2)
FAKE_TRAINER = f"""
import pathlib, sys
command, source, *rest = sys.argv[1:]
if command == "inspect":
    if not pathlib.Path(source).is_dir():
        sys.exit("inspect: " + source + ": no directory of a run")
    print("a warning of a library", file=sys.stderr)
    print('''{FOUND}''')
else:
    pathlib.Path(rest[0]).write_bytes(b"converted " + source.encode())
"""


class Cluster:
    """API server whose only Kubernetes node is this machine. The claim is a folder."""

    def __init__(self, api: JobsApi, folder: Path) -> None:
        self.api, self.claim = api, folder / "claim"
        self.run, self.scratch = self.claim / "runs" / "digits", folder / "scratch"
        self.checkpoint = self.run / str(CHECKPOINT["name"])
        self.checkpoint.mkdir(parents=True)
        self.scratch.mkdir()
        (self.scratch / "ddp_trainer.py").write_text(FAKE_TRAINER)
        self.readers: list[dict[str, Any]] = []
        self.change: Callable[[list[str]], list[str]] = lambda lines: lines
        """Function that changes the lines of a reader before they reach its log."""
        api.put(running(checkpoint={"claimName": "shared", "path": "runs/digits"}))
        api.on_creation = self.start

    def start(self, job: dict[str, Any]) -> None:
        """Run the command of a reader, as its pod does."""
        self.readers.append(job)
        shell, option, script = job["spec"]["command"]
        script = script.replace("/tmp/", f"{self.scratch}/")
        script = script.replace("/mnt/run", str(self.claim))
        done = subprocess.run(
            [shell, option, script.replace("python ", f"{sys.executable} ")],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.scratch,
        )
        assert not done.stderr
        log = self.api.logs[f"{job['metadata']['name']}-0"] = PodLog()
        log.add(0, "ddp-agent: attempt 1: torchrun")
        for line in self.change(done.stdout.splitlines()):
            log.add(1, f"[rank 0] {line}")
        log.end()
        ended = {"completionTime": "2026-03-01T12:30:00Z"}
        job["status"] = {"attempt": 1, "conditions": [summary("Running")], **ended}


@pytest.fixture
def cluster(api: JobsApi, tmp_path: Path) -> Cluster:
    return Cluster(api, tmp_path)


def test_checkpoints_are_listed_by_a_job_that_only_reads(cluster: Cluster) -> None:
    found = checkpoints_of(connect().get("digits")).inspect(quick=True)
    assert (found.found, found.start) == ([CHECKPOINT], CHECKPOINT["name"])
    [reader] = cluster.readers
    [volume], [mount] = reader["spec"]["volumes"], reader["spec"]["volumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    assert mount["readOnly"]
    assert "checkpoint" not in reader["spec"]  # It must not own the directory.
    assert [name for name in cluster.api.objects if "reader" in name] == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 6144, 6145, 100_000])
def test_weights_are_copied_bit_by_bit(cluster: Cluster, tmp_path: Path, size: int) -> None:
    content = hashlib.shake_128(b"weights").digest(size)
    (cluster.checkpoint / "model.safetensors").write_bytes(content)
    chosen = download(checkpoints_of(connect().get("digits")), None, tmp_path / "model")
    assert chosen == CHECKPOINT
    assert (tmp_path / "model").read_bytes() == content
    assert [name for name in cluster.api.objects if "reader" in name] == []


def test_weights_in_parts_are_joined_beside_the_claim(cluster: Cluster, tmp_path: Path) -> None:
    download(checkpoints_of(connect().get("digits")), 7, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == b"converted " + bytes(cluster.checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [lambda lines: [*lines[:3], *lines[4:]], lambda lines: lines[:-1], lambda lines: lines[:1]],
    ids=["a line is lost", "the end is lost", "all but the beginning is lost"],
)
def test_copy_with_a_lost_part_is_refused(
    cluster: Cluster, tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    (cluster.checkpoint / "model.safetensors").write_bytes(bytes(50_000))
    source = checkpoints_of(connect().get("digits"))
    found = source.inspect(quick=False)
    cluster.change = change
    with pytest.raises(RequestError, match="a part of the copy was lost: try again"):
        source.copy_weights(found.found[0]["name"], tmp_path / "model")


def test_checkpoint_that_the_run_deletes_is_replaced_by_the_newest_one(tmp_path: Path) -> None:
    found = [
        RunCheckpoints("run", [{"name": name, "step": step, "state": "whole"}], name)
        for step, name in enumerate(("old", "new"))
    ]
    copied: list[str] = []

    class Run:
        def inspect(self, *, quick: bool) -> RunCheckpoints:
            assert not quick  # A damaged one must not be chosen.
            return found[min(len(copied), 1)]

        def copy_weights(self, name: str, target: Path) -> None:
            copied.append(name)
            target.write_text(name)
            if name == "old":
                raise RequestError("there is no such checkpoint")

    assert download(Run(), None, tmp_path / "model")["name"] == "new"
    assert (tmp_path / "model").read_text() == "new"
    found[1] = found[0]
    with pytest.raises(RequestError, match="no such checkpoint"):
        download(Run(), None, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_lost_part_leaves_no_file(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.checkpoint / "model.safetensors").write_bytes(bytes(50_000))
    cluster.change = lambda lines: lines if "{" in lines else lines[:-1]
    with pytest.raises(RequestError, match="was lost"):
        download(checkpoints_of(connect().get("digits")), None, tmp_path / "model")
    assert not list(tmp_path.glob("*model*"))


@pytest.mark.slow
def test_large_file_is_refused_with_the_other_way(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 999)
    (cluster.checkpoint / "model.safetensors").write_bytes(bytes(1000))
    with pytest.raises(RequestError, match=r"1,000 bytes.*at most 999 .*--run-dir"):
        download(checkpoints_of(connect().get("digits")), None, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_directory_without_a_run_gets_the_sentence_of_the_trainer(cluster: Cluster) -> None:
    cluster.checkpoint.rmdir()
    cluster.run.rmdir()
    with pytest.raises(RequestError, match=r"^/.*digits: no directory of a run$"):
        checkpoints_of(connect().get("digits")).inspect(quick=True)


def test_reader_that_does_not_start_is_named_with_its_state_and_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0)
    waiting = {"conditions": [summary("Pending", "the claim is in use on another node")]}
    cluster.api.on_creation = lambda job: job.update(status=waiting)
    with pytest.raises(RequestError, match=r"the claim shared cannot be read: .*another node"):
        checkpoints_of(connect().get("digits")).inspect(quick=True)
    assert [name for name in cluster.api.objects if "reader" in name] == []


def test_reader_without_the_right_to_create_jobs_is_refused(cluster: Cluster) -> None:
    cluster.api.refused["POST", "ddpjobs"] = 403, "forbidden"
    with pytest.raises(ClusterError, match="ddpjob-editor"):
        checkpoints_of(connect().get("digits")).inspect(quick=True)


def test_reader_runs_as_the_pods_of_the_job_do(cluster: Cluster) -> None:
    shared: dict[str, Any] = {
        "image": "team/trainer:1",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "a"},
    }
    pod = {"securityContext": {"fsGroup": 2000}, "serviceAccountName": "team"}
    checkpoint = {"claimName": "shared", "path": "runs/digits"}
    overlay = {"spec": {**pod, "priorityClassName": "high"}, "metadata": {"labels": {"a": "b"}}}
    cluster.api.put(running(checkpoint=checkpoint, podTemplate=overlay, gpusPerNode=8, **shared))
    checkpoints_of(connect().get("digits")).inspect(quick=True)
    [reader] = cluster.readers
    assert {name: reader["spec"][name] for name in shared} == shared
    assert reader["spec"]["podTemplate"] == {"spec": pod}
    assert "gpusPerNode" not in reader["spec"]
