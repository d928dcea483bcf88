"""The client of this machine: runs in a folder have the verbs of jobs on a cluster."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_operator.cli.main import main
from ddp_operator.client import Job, NoSuchJobError, RequestError, local
from ddp_operator.client.run_folder import add_event, is_running, locked, save_job
from ddp_operator.report.rows import state_of
from tests.operator.client.test_cluster_jobs import running, summary

SCRIPT = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
rank = os.environ["RANK"]
print("hello from", rank, "of attempt", os.environ["DDP_ATTEMPT"], flush=True)
end = time.monotonic() + float(os.environ["SECONDS_TO_RUN"])
while time.monotonic() < end and not stop:
    time.sleep(0.05)
print("bye from", rank, flush=True)
sys.exit(85 if stop else 0)
"""


def manifest(seconds: float, name: str = "hello") -> dict[str, object]:
    spec = {
        "nodes": 2,
        "standby": False,
        "command": ["python", "/code/hello.py"],
        "env": [{"name": "SECONDS_TO_RUN", "value": str(seconds)}],
    }
    kind = {"apiVersion": "ddp-trainer.dev/v1alpha1", "kind": "DDPJob"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "hello.py").write_text(SCRIPT)
    return folder


def test_stored_run_is_read_with_its_output_and_events(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    (folder / "logs").mkdir(parents=True)
    found = running()
    found["status"]["conditions"] = [summary("Completed", "done", "True")]
    save_job(folder, found)
    add_event(folder, found, {"type": "Normal", "reason": "Started", "message": "attempt 1"})
    for rank in (0, 1):
        begin = f"ddp-agent: attempt 1: torchrun\n[rank {rank}] one\n"
        again = f"ddp-agent: attempt 2: torchrun\n[rank {rank}] two\n"
        (folder / "logs" / f"digits-{rank}.log").write_text(begin + again)
    job = local(tmp_path).get("digits")
    assert job.state == "Completed"
    lines = [(one.attempt, one.rank, one.text) for one in job.logs() if one.rank is not None]
    assert lines == [(1, 0, "one"), (1, 1, "one"), (2, 0, "two"), (2, 1, "two")]
    assert [event["reason"] for event in job.events()] == ["Started"]
    ended = CliRunner().invoke(main, ["events", "digits", "--dir", str(tmp_path), "-o", "name"])
    assert ended.stdout.startswith("event/digits.")
    assert [one["metadata"]["name"] for one in local(tmp_path).list()] == ["digits"]


def test_run_whose_process_was_killed_is_suspended(tmp_path: Path) -> None:
    save_job(tmp_path / "digits", running())
    assert local(tmp_path).get("digits").state == "Suspended"
    with locked(tmp_path / "digits"):
        assert local(tmp_path).get("digits").state == "Running"


def test_missing_or_damaged_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchJobError, match="there is no run 'digits' in the folder"):
        local(tmp_path).get("digits")
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "job.json").write_text("{")
    with pytest.raises(NoSuchJobError, match="is damaged"):
        local(tmp_path).get("digits")
    with pytest.raises(NoSuchJobError, match=r"there is no run '\.\./digits'"):
        local(tmp_path).get("../digits")


def test_verbs_that_need_a_cluster_say_what_to_do(tmp_path: Path) -> None:
    save_job(tmp_path / "digits", running())
    job = local(tmp_path).get("digits")
    with pytest.raises(RequestError, match="change the manifest, and run it again"):
        job.scale(4)
    with pytest.raises(RequestError, match="run the same command again to resume"):
        job.resume()


@pytest.mark.slow
def test_run_that_cannot_start_is_refused_with_its_own_sentence(tmp_path: Path) -> None:
    wrong = manifest(1)
    wrong["spec"] = {"command": ["nosuchprogram"]}
    with pytest.raises(RequestError, match="there is no program 'nosuchprogram'"):
        local(tmp_path / "runs").submit(wrong)


@pytest.mark.slow
def test_submitted_run_is_followed_to_its_end(tmp_path: Path, code: Path) -> None:
    job = local(tmp_path / "runs").submit(manifest(1), code=code)
    lines = [(one.rank, one.text) for one in job.logs(follow=True) if one.rank is not None]
    assert sorted(lines) == sorted(
        (rank, f"{word} from {rank}{end}")
        for rank in (0, 1)
        for word, end in (("hello", " of attempt 1"), ("bye", ""))
    )
    assert state_of(job.wait(timeout=60)) == "Completed"
    assert [event["reason"] for event in job.events()][:1] == ["Started"]


def wait_for_line(job: Job, text: str) -> None:
    """Wait until the run has printed a line. It joins no process group, so it is never Running."""
    end = time.monotonic() + 120
    while text not in [one.text for one in job.logs()]:
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
def test_suspended_run_resumes_and_is_deleted(tmp_path: Path, code: Path) -> None:
    job = local(tmp_path / "runs").submit(manifest(120), code=code)
    try:
        wait_for_line(job, "hello from 0 of attempt 1")
        job.suspend()
        assert state_of(job.wait("Suspended", timeout=120)) == "Suspended"
        while is_running(tmp_path / "runs" / "hello"):
            time.sleep(0.1)
        job.resume()
        wait_for_line(job, "hello from 0 of attempt 2")
    finally:
        job.delete()
    assert not is_running(tmp_path / "runs" / "hello")
    with pytest.raises(NoSuchJobError):
        job.read()


def test_verbs_of_the_command_take_a_folder(tmp_path: Path) -> None:
    save_job(tmp_path / "digits", running())
    ended = CliRunner().invoke(main, ["list", "--dir", str(tmp_path), "-o", "json"])
    assert [one["metadata"]["name"] for one in json.loads(ended.stdout)["items"]] == ["digits"]
    ended = CliRunner().invoke(main, ["why", "digits", "--dir", str(tmp_path)])
    assert ended.stdout.splitlines()[-1] == f"  ddpjob resume digits --dir {tmp_path}"
    page = tmp_path / "page.html"
    ended = CliRunner().invoke(main, ["report", "digits", "--dir", str(tmp_path), "-o", str(page)])
    assert (ended.exit_code, ended.stdout) == (0, f"{page}\n")
