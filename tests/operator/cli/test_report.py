"""`ddpjob report`: data from a run's directory, from a local run and from a cluster."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from ddp_operator.cli.main import main
from ddp_operator.cli.report_data import read_directory
from ddp_operator.client import run_events
from ddp_operator.client.run_folder import JOB_FILE
from ddp_operator.report.figures import build_figures
from ddp_operator.report.timeline import build_timeline
from ddp_wire.contract import HISTORY_FILE
from ddp_wire.durations import duration_text
from tests.operator.fake_api import FakeApi, refusal
from tests.operator.report.support import START, Checker, job, line, progress, two_attempts

JOB_PATH = "/apis/ddp-trainer.dev/v1alpha1/namespaces/{}/ddpjobs/digits"
SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "digits.yaml"


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def run_directory(folder: Path) -> Path:
    directory = folder / "digits-0123"
    directory.mkdir(parents=True)
    (directory / HISTORY_FILE).write_bytes(b"".join(two_attempts()))
    return directory


def test_report_of_a_run_directory_is_written_and_its_path_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = report(run_directory(tmp_path))
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == "digits-0123-report.html\n"
    text = (tmp_path / "digits-0123-report.html").read_text()
    Checker().check(text)
    assert "only the job&#x27;s status has them" in text
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("none/run", "none/run: no such directory"),
        ("empty", "empty: must be the directory of a run (with history.jsonl)"),
    ],
)
def test_directory_without_a_run_ends_with_exit_code_2_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    ended = report(target)
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"ddpjob: {sentence}")
    assert len(ended.stderr.splitlines()) == 1


def test_pipe_or_huge_file_in_place_of_the_job_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for plant in (os.mkfifo, lambda path: path.open("wb").truncate(6 << 30)):
        plant(tmp_path / JOB_FILE)
        ended = report(tmp_path, "-o", tmp_path / "page.html")
        assert ended.exit_code == 0
        assert "job.json is damaged" in (tmp_path / "page.html").read_text()
        (tmp_path / JOB_FILE).unlink()


def test_very_long_line_and_unfinished_last_line_are_read_only_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "FILE_BYTES", 1000)
    monkeypatch.setattr(run_events, "LINE_BYTES", 400)
    history = tmp_path / HISTORY_FILE
    history.write_bytes(line("start", 0) + progress(5, 5) + b"x" * 2000 + progress(10, 50))
    points = read_directory(tmp_path).history.points
    assert [point.step for point in points] == [5]


def test_pipe_in_place_of_the_history_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HISTORY_FILE)
    ended = report(tmp_path)
    assert ended.exit_code == 2
    assert ended.stderr == (
        f"ddpjob: {tmp_path / HISTORY_FILE}: must be a regular file, not a link, pipe or device;"
        " remove it\n"
    )


def test_report_that_cannot_be_written_ends_with_exit_code_2(tmp_path: Path) -> None:
    ended = report(run_directory(tmp_path), "-o", tmp_path / "none" / "page.html")
    assert ended.exit_code == 2
    assert "page.html: cannot be written: No such file or directory" in ended.stderr


def test_copied_logs_replace_a_missing_history(tmp_path: Path) -> None:
    (tmp_path / "FENCE.json").write_text("{}")
    for attempt, name in ((10, "stdout.log"), (9, "stdout.log"), (9, "stdout.log.old")):
        folder = tmp_path / f"logs/attempt-{attempt}/node-0/uid-{attempt}_x/attempt_0/0"
        folder.mkdir(parents=True, exist_ok=True)
        start = line("start", attempt, attempt) if name != "stdout.log" or attempt == 10 else b""
        at = attempt + (0.1 if name == "stdout.log.old" else 0.5)
        (folder / name).write_bytes(start + progress(at, 1, attempt))
    found = read_directory(tmp_path).history
    assert [attempt.number for attempt in found.attempts] == [9, 10]
    assert [round(point.time - START, 1) for point in found.points] == [9.1, 9.5, 10.5]


def test_folder_of_a_local_run_has_status_and_events(tmp_path: Path) -> None:
    run_directory(tmp_path / "volumes" / "training-shared")
    (tmp_path / JOB_FILE).write_text(json.dumps(job(attempt=2)))
    found = read_directory(tmp_path)
    assert found.job is not None
    assert found.name == "digits"
    assert len(found.history.points) == 4
    assert found.missing == []


def test_local_run_without_a_volume_has_the_events_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "digits-0.log").write_bytes(b"[rank 0] " + progress(1, 5))
    (tmp_path / "logs" / "digits-1.log").write_bytes(b"[rank 2] other\n")
    (tmp_path / JOB_FILE).write_text("{")
    found = read_directory(tmp_path)
    assert [point.step for point in found.history.points] == [5]
    assert found.missing == ["Status and causes of restarts: job.json is damaged."]


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    server = FakeApi()
    await server.start()
    yield server
    await server.stop()


Answer = Callable[[web.Request], web.StreamResponse | None]


def answers(documents: dict[str, dict[str, Any] | bytes]) -> Answer:
    """Return a fault that answers the given paths with a document or a log."""

    def answer(request: web.Request) -> web.StreamResponse | None:
        found = documents.get(request.path)
        if isinstance(found, bytes):
            return web.Response(body=found, content_type="text/plain")
        return web.json_response(found) if found is not None else refusal(404, "not found")

    return answer


async def report_from(api: FakeApi, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command with a kubeconfig for the fake API server."""
    kubeconfig = api.kubeconfig(folder)
    document = yaml.safe_load(kubeconfig.read_text())
    document["contexts"][0]["context"]["namespace"] = "team-a"
    kubeconfig.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "ddp_operator.cli.main", "report", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_report_of_a_cluster_job_has_its_status_and_the_log_of_node_0(
    api: FakeApi, tmp_path: Path
) -> None:
    log = b"".join(b"[rank 0] " + event for event in two_attempts())
    pod = "/api/v1/namespaces/team-a/pods/digits-0/log"
    api.fault = answers({JOB_PATH.format("team-a"): job(attempt=2, restarts=1), pod: log})
    code, out, err = await report_from(api, tmp_path, "digits")
    assert (code, out, err) == (0, "digits-report.html\n", "")
    text = (tmp_path / "digits-report.html").read_text()
    Checker().check(text)
    assert "restarts: 1 application" in text
    assert "<h2>Loss" in text
    assert "Not in this report" not in text


@pytest.mark.slow
async def test_report_says_that_the_pod_of_node_0_is_gone(api: FakeApi, tmp_path: Path) -> None:
    api.fault = answers({JOB_PATH.format("team-b"): job(attempt=2)})
    code, _, err = await report_from(api, tmp_path, "digits", "-n", "team-b")
    assert (code, err) == (0, "")
    text = (tmp_path / "digits-report.html").read_text()
    assert "Events, and so the charts: the pod digits-0 is gone." in text
    code, _, _ = await report_from(
        api, tmp_path, "digits", "-n", "team-b", "--run-dir", str(run_directory(tmp_path))
    )
    text = (tmp_path / "digits-report.html").read_text()
    assert code == 0
    assert "<h2>Loss" in text


async def test_report_says_that_a_log_starts_at_a_later_attempt(
    api: FakeApi, tmp_path: Path
) -> None:
    pod = "/api/v1/namespaces/team-a/pods/digits-0/log"
    api.fault = answers({JOB_PATH.format("team-a"): job(attempt=3), pod: progress(1, 5, 3)})
    await report_from(api, tmp_path, "digits")
    assert "Events before attempt 3" in (tmp_path / "digits-report.html").read_text()


async def test_missing_job_ends_with_exit_code_2_and_one_sentence(
    api: FakeApi, tmp_path: Path
) -> None:
    api.fault = answers({})
    code, out, err = await report_from(api, tmp_path, "digits")
    assert (code, out) == (2, "")
    assert err == "ddpjob: there is no DDPJob 'digits' in the namespace 'team-a'\n"


async def test_refused_job_ends_with_exit_code_3_and_the_servers_own_sentence(
    api: FakeApi, tmp_path: Path
) -> None:
    api.fault = lambda _: refusal(403, "user eve cannot get ddpjobs")
    code, _, err = await report_from(api, tmp_path, "digits")
    assert code == 3
    assert err.startswith("ddpjob: user eve cannot get ddpjobs; the chart's roles")


@pytest.mark.slow
async def test_unknown_context_ends_with_exit_code_3_and_the_known_ones(
    api: FakeApi, tmp_path: Path
) -> None:
    code, _, err = await report_from(api, tmp_path, "digits", "--context", "other")
    assert code == 3
    assert err == "ddpjob: the kubeconfig has no context 'other'; it has: fake\n"
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_report_of_a_real_local_run_contains_its_progress_points(tmp_path: Path) -> None:
    command, began = [sys.executable, "-m", "ddp_operator.cli.main"], time.time()
    settings = ["--set", "config.epochs=6", "--set", "nodes=1", "--dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "run", str(SAMPLE), *settings],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_directory(tmp_path / "digits")
    assert found.missing == []
    assert found.job is not None
    assert found.job.state == "Completed"
    assert [point.step for point in found.history.points] == [10, 20, 30, 36]
    point = found.history.points[-2]  # The last one has too few updates to compare ranks.
    for spread in (point.step_seconds, point.own_seconds):
        assert spread is not None
        assert len(spread.by_rank) == 2
    assert [event.step for event in found.history.evaluations][-1] == 36
    assert [event.step for event in found.history.saves][-1] == 36
    ended = report(tmp_path / "digits", "-o", tmp_path / "page.html")
    assert ended.exit_code == 0, ended.output
    text = (tmp_path / "page.html").read_text()
    Checker().check(text)
    assert "Not in this report" not in text
    assert "<h2>Ranks of attempt 1</h2>" in text
    again = subprocess.run(
        [*command, "run", str(SAMPLE), *settings, "--set", "config.epochs=7"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "attempt 2 resumed from step 36" in again.stdout, "attempts count on"
    assert "fail" not in again.stdout
    check_resumed(tmp_path / "digits", time.time() - began)


def check_resumed(folder: Path, seconds: float) -> None:
    """Check the report of a completed run that was resumed after an interruption."""
    found = read_directory(folder)
    assert found.job is not None
    timeline = build_timeline(found.job, found.history, found.now)
    rows = [(row.number, row.kind, row.start_step, row.end_step) for row in timeline.rows]
    assert rows == [(1, "completed", None, 36), (2, "completed", 36, 42)]
    goodput = found.job.goodput
    # The times of the status have whole seconds. The start of two interpreters takes the rest.
    assert sum(goodput.values()) == pytest.approx(timeline.seconds, abs=2)
    assert timeline.rows[1].end - timeline.rows[0].start <= timeline.seconds < seconds + 1
    assert "recovering" not in goodput, "nothing was lost"
    assert goodput["suspended"] > 0
    named = build_figures(found.job, found.history, timeline, goodput)
    figures = {figure.name: figure.value for figure in named}
    assert figures["Duration"] == duration_text(timeline.seconds)
    assert figures["Attempts"] == "2"
    share = 100 * goodput["training"] / (sum(goodput.values()) - goodput["suspended"])
    assert figures["Goodput"] == f"{share:.1f}%"


def test_report_of_a_name_that_is_neither_folder_nor_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    ended = report("digts")
    assert ended.exit_code == 2
    begin = "ddpjob: there is no folder digts here, and no cluster is configured"
    assert ended.stderr.startswith(begin)
