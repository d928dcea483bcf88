"""The support bundle: it has what helps, and no secrets."""

import json
import stat
import tarfile
from pathlib import Path

import pytest

from ddp_operator.client import RequestError, connect
from ddp_operator.client.bundle import write_bundle
from ddp_operator.client.redaction import redact, redact_text
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import running

SECRETS = ["hunter2", "s3cr3t-of-env", "AKIAABCDEFGHIJKLMNOP", "eyJhbGciOiJIUzI1NiJ9", "p4ss"]


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = {one.name.rpartition("/")[2]: one for one in archive.getmembers()}
        files = {name: archive.extractfile(one) for name, one in members.items()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_bundle_has_the_story_and_the_output_and_no_secret(api: JobsApi, tmp_path: Path) -> None:
    env = [
        {"name": "WANDB_API_KEY", "value": SECRETS[1]},
        {"name": "NCCL_DEBUG", "value": "INFO"},
    ]
    found = running(env=env, command=["python", "train.py", f"--password={SECRETS[0]}"])
    found["metadata"]["managedFields"] = [{"x": SECRETS[0]}]
    api.put(found)
    api.logs["digits-0"] = log = PodLog()
    log.add(0, f"[rank 0] key {SECRETS[2]} Authorization: Bearer {SECRETS[3]}")
    log.add(1, f"[rank 0] reading s3://bob:{SECRETS[4]}@store/data, loss 0.5")
    missing = write_bundle(connect().get("digits"), tmp_path / "b.tar.gz")
    files = content(tmp_path / "b.tar.gz")
    assert "Running" in files["story.txt"]
    assert "loss 0.5" in files["output.log"]
    assert json.loads(files["job.json"])["spec"]["env"][1]["value"] == "INFO"
    everything = "".join(files.values())
    assert [secret for secret in SECRETS if secret in everything] == []
    assert missing == ["output.log: digits-1: the pod is gone"]
    assert files["missing.txt"] == "output.log: digits-1: the pod is gone\n"
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


def test_bundle_that_cannot_be_written_is_named(api: JobsApi, tmp_path: Path) -> None:
    api.put(running())
    with pytest.raises(RequestError, match="cannot be written: No such file or directory"):
        write_bundle(connect().get("digits"), tmp_path / "none" / "b.tar.gz")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"claimName": "shared"}, {"claimName": "shared"}),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, {"secretKeyRef": {"name": "s", "key": "k"}}),
        ({"config": {"task": {"api_key": "abc"}}}, {"config": {"task": {"api_key": "REDACTED"}}}),
        ({"client_secret": "abc"}, {"client_secret": "REDACTED"}),
        ({"imagePullSecrets": ["one"]}, {"imagePullSecrets": ["one"]}),
        ({"lr": 0.1, "epochs": 3}, {"lr": 0.1, "epochs": 3}),
    ],
)
def test_only_secrets_are_hidden_in_objects(given: object, kept: object) -> None:
    assert redact(given) == kept


@pytest.mark.parametrize(
    "text", ["loss 0.5 after 300 tokens", "12 tokens/s", "secret santa", "https://host/path"]
)
def test_usual_lines_are_not_changed(text: str) -> None:
    assert redact_text(text) == text
