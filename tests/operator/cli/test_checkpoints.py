"""`ddpjob checkpoints`: list, verify and download the checkpoints of a run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddp_operator.cli.main import main
from ddp_operator.client import RequestError
from ddp_operator.client.checkpoints import DirectoryCheckpoints, download
from tests.operator.client.jobs_api import JobsApi
from tests.operator.client.test_cluster_jobs import running

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "digits.yaml"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.mark.slow
def test_checkpoints_of_a_real_run_are_listed_verified_and_downloaded(tmp_path: Path) -> None:
    size = ["--set", "nodes=1", "--set", "procsPerNode=1", "--set", "config.epochs=2"]
    assert run("run", SAMPLE, *size, "--dir", tmp_path).exit_code == 0
    listed = run("checkpoints", "list", "digits", "--dir", tmp_path, "-o", "json")
    found = json.loads(listed.stdout)
    assert found["start"] == found["checkpoints"][0]["name"]
    directory = Path(found["directory"])
    assert run("checkpoints", "verify", "digits", "--run-dir", directory).exit_code == 0
    model = tmp_path / "model.safetensors"
    ended = run("checkpoints", "download", "digits", "--dir", tmp_path, "-o", model)
    newest = found["checkpoints"][0]
    assert ended.stdout.startswith(f"{model}: the weights of update {newest['step']}, ")
    assert model.read_bytes() == (directory / newest["name"] / model.name).read_bytes()
    weights = directory / newest["name"] / model.name
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    ended = run("checkpoints", "verify", "digits", "--dir", tmp_path)
    assert ended.exit_code == 1
    assert "A start uses" in ended.stdout
    ended = run(
        *("checkpoints", "download", "digits", "--dir", tmp_path, "-o", tmp_path / "new"),
        *("--step", str(newest["step"])),
    )
    assert ended.exit_code == 2
    assert f"there is no whole checkpoint of update {newest['step']}; whole ones" in ended.stderr


def test_job_without_checkpoints_says_so(cluster: JobsApi) -> None:
    cluster.put(running())
    ended = run("checkpoints", "verify", "digits")
    assert (ended.exit_code, ended.stderr) == (
        2,
        "ddpjob: digits has no spec.checkpoint, so it saves nothing\n",
    )


@pytest.mark.parametrize(
    ("folder", "sentence"), [("none", "none: no such directory"), (".", "no directory of a run")]
)
def test_directory_without_a_run_gets_one_sentence(
    tmp_path: Path, folder: str, sentence: str
) -> None:
    ended = run("checkpoints", "list", "digits", "--run-dir", tmp_path / folder)
    assert (ended.exit_code, len(ended.stderr.splitlines())) == (2, 1)
    assert sentence in ended.stderr


def test_existing_file_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"new")
    (tmp_path / "model").write_bytes(b"old")
    with pytest.raises(RequestError, match="exists already"):
        download(DirectoryCheckpoints(tmp_path), None, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == b"old"
