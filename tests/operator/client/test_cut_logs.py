"""Logs whose connection breaks: nothing is shown twice, and the user learns what is missing."""

import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_operator.cli.main import main
from ddp_operator.client import ClusterError, connect
from ddp_operator.client import cluster_inspections as inspections
from ddp_operator.client import follow as module
from ddp_operator.client.follow import PodFollower
from ddp_operator.client.log_lines import LogLine
from ddp_operator.cluster.rest.connection import RestConnection
from ddp_operator.cluster.rest.kubeconfig import Access
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import finish, running
from tests.operator.client.test_inspections import Ranks, stack
from tests.operator.report.support import job, progress

CUT = "the log was cut off: the connection broke"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


class Server:
    """Server that answers one request with these bytes, and then closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self.closes = threading.Event()
        """Whether the server may close the connection."""
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def api(self) -> RestConnection:
        port = self._socket.getsockname()[1]
        return RestConnection(Access(f"http://127.0.0.1:{port}", "team-a", "here", {}, None))

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        connection.recv(65536)
        connection.sendall(self._answer)
        self.closes.wait(60)
        connection.close()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"6\r\nfirst\n\r\n",
        CHUNKED + b"6\r\nfirst\n\r\n20\r\nseco",
        HEAD + b"Content-Length: 100\r\n\r\nfirst\nseco",
    ],
    ids=["between chunks", "in a chunk", "before the promised length"],
)
def test_stream_that_breaks_is_an_error_after_its_whole_lines(answer: bytes) -> None:
    server = Server(answer)
    server.closes.set()
    lines: list[bytes] = []
    with pytest.raises(ClusterError) as caught:
        lines.extend(server.api.stream("/log", {}))
    assert (lines, str(caught.value)) == ([b"first\n"], CUT)


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"6\r\nfirst\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 6\r\n\r\nfirst\n",
        HEAD + b"Connection: close\r\n\r\nfirst\n",
    ],
)
def test_stream_that_the_server_ends_is_whole(answer: bytes) -> None:
    server = Server(answer)
    server.closes.set()
    assert list(server.api.stream("/log", {})) == [b"first\n"]


@pytest.mark.parametrize("head", [CHUNKED, HEAD + b"Connection: close\r\n\r\n6\r\n"])
def test_stream_that_the_client_closes_is_no_error(head: bytes) -> None:
    server = Server(head)
    stream = server.api.stream("/log", {})
    threading.Timer(0.1, stream.close).start()
    assert b"first\n" not in list(stream)


def stamped(*numbers: int, second: int = 0) -> list[bytes]:
    return [b"2026-03-01T12:00:%02d.%09dZ line %d\n" % (second, one, one) for one in numbers]


class Log:
    """Log of a pod in requests that return these lines. A request may break after them."""

    def __init__(self, *requests: list[bytes], breaks: int) -> None:
        self.requests, self.breaks = list(requests), breaks
        self.asked = 0

    def open(self, pod: str, since: datetime | None) -> "Log":
        del pod, since
        self.asked += 1
        return self

    def __iter__(self) -> Iterator[bytes]:
        if self.requests:
            yield from self.requests.pop(0)
        if self.asked <= self.breaks:
            raise ClusterError(CUT)

    def close(self) -> None:
        pass


def followed(log: Log) -> tuple[list[str], str]:
    """Return the lines that a follower shows of the log of a job that is over, and its problem."""
    shown: list[LogLine] = []
    follower = PodFollower("digits-0", log.open, shown.append, lambda: True, None)
    follower._thread.join(60)
    assert follower.ended
    return [line.text for line in shown], str(follower.problem or "")


def test_request_that_breaks_early_repeats_no_line_of_an_earlier_one() -> None:
    all_lines = stamped(0, 1, 2, 3, 4)
    log = Log(all_lines, all_lines[:2], all_lines, breaks=2)
    assert followed(log) == ([f"line {one}" for one in range(5)], "")


def test_lines_of_a_newer_second_are_shown_once() -> None:
    old, new = stamped(0, 1), stamped(2, 3, 4, second=1)
    log = Log([*old, *new[:2]], new[:1], new[1:2], new, breaks=3)
    assert followed(log) == ([f"line {one}" for one in range(5)], "")


def test_log_that_breaks_after_the_end_of_the_job_is_requested_again() -> None:
    log = Log(stamped(0), stamped(0), stamped(0, 1, 2), breaks=2)
    assert followed(log) == (["line 0", "line 1", "line 2"], "")


def test_log_that_keeps_breaking_is_given_up_with_a_sentence() -> None:
    log = Log(stamped(0), breaks=1000)
    assert followed(log) == (["line 0"], CUT)
    assert 2 <= log.asked <= 20


def test_log_that_breaks_often_is_read_to_its_end_while_it_gets_on() -> None:
    requests = [stamped(*range(one, one + 2)) for one in range(50)]
    assert len(followed(Log(*requests, breaks=50))[0]) == 51


def started(api: JobsApi, lines: int = 5) -> PodLog:
    """Add a job with one pod, whose log has these lines."""
    api.put(running(nodes=1))
    api.logs["digits-0"] = log = PodLog()
    for one in range(lines):
        log.add(one / 10, f"[rank 0] line {one}")
    return log


def test_cut_log_is_shown_with_a_note_and_an_exit_code(api: JobsApi) -> None:
    started(api).cuts = [3]
    ended = CliRunner().invoke(main, ["logs", "digits"])
    assert ended.stdout == "".join(f"[rank 0] line {one}\n" for one in range(3))
    assert (ended.exit_code, ended.stderr) == (3, f"ddpjob: digits-0: {CUT}\n")


def test_followed_log_of_an_ended_job_is_whole_after_breaks(api: JobsApi) -> None:
    log = started(api)
    log.cuts = [5, 2, 0]
    log.end()
    finish(api, running(nodes=1))
    ended = CliRunner().invoke(main, ["logs", "digits", "-f"])
    assert ended.stdout == "".join(f"[rank 0] line {one}\n" for one in range(5))
    assert (ended.exit_code, ended.stderr) == (0, "")


def test_followed_log_that_stays_cut_has_a_note_and_an_exit_code(api: JobsApi) -> None:
    log = started(api)
    log.cuts = [2] * 100
    log.end()
    finish(api, running(nodes=1))
    ended = CliRunner().invoke(main, ["logs", "digits", "-f"])
    assert ended.stdout == "[rank 0] line 0\n[rank 0] line 1\n"
    assert (ended.exit_code, ended.stderr) == (3, f"ddpjob: digits-0: {CUT}\n")


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_pod_without_a_log_has_a_note_and_is_no_error(api: JobsApi, options: list[str]) -> None:
    """The log of a pod that is gone does not exist any more. All others are whole."""
    started(api).end()
    finish(api, running(nodes=2))
    ended = CliRunner().invoke(main, ["logs", "digits", *options])
    assert ended.stdout == "".join(f"[rank 0] line {one}\n" for one in range(5))
    assert (ended.exit_code, ended.stderr) == (0, "ddpjob: digits-1: the pod is gone\n")


def test_next_logs_of_the_same_client_are_whole_again(api: JobsApi) -> None:
    started(api).cuts = [3]
    found = connect().get("digits")
    assert (len(list(found.logs())), found.backend.lost_lines) == (3, True)
    assert (len(list(found.logs())), found.backend.lost_lines) == (5, False)


def test_pod_that_is_gone_after_its_whole_log_has_no_note(api: JobsApi) -> None:
    started(api).end()
    lines = connect().get("digits").logs(follow=True)
    shown = [next(lines).text]
    finish(api, running(nodes=1))
    del api.logs["digits-0"]
    shown += [line.text for line in lines]
    assert shown == [f"line {one}" for one in range(5)]


def test_bundle_names_the_cut_log(api: JobsApi, tmp_path: Path) -> None:
    started(api).cuts = [3, 3]
    path = tmp_path / "bundle.tgz"
    ended = CliRunner().invoke(main, ["support-bundle", "digits", "-o", str(path)])
    assert f"output.log: digits-0: {CUT}" in ended.stderr
    assert f"metrics.json: digits-0: {CUT}" in ended.stderr
    with tarfile.open(path) as archive:
        missing = archive.extractfile("digits-support/missing.txt")
        assert missing is not None
        assert CUT.encode() in missing.read()


def test_metrics_and_report_of_a_cut_log_name_it(
    api: JobsApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.put(job(attempt=1))
    api.logs["digits-0"] = log = PodLog()
    for one in (1, 2, 3):
        log.add(one, "[rank 0] " + progress(one, 10 * one).decode().strip())
    log.cuts = [2, 2]
    found = connect().get("digits")
    assert [row["step"] for row in found.metrics()] == [10, 20]
    assert (found.backend.notes(), found.backend.lost_lines) == ([f"digits-0: {CUT}"], True)
    ended = CliRunner().invoke(main, ["report", "digits"])
    assert ended.exit_code == 0
    page = Path("digits-report.html").read_text()
    assert CUT in page
    assert "the log of the pod digits-0" in page


def test_cut_answer_of_the_ranks_is_read_again(
    api: JobsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspections, "WAIT_SECONDS", 5.0)
    monkeypatch.setattr(inspections, "_POLL_SECONDS", 0.01)
    ranks = Ranks(api, 0, 1)
    for log in ranks.logs:
        log.cuts = [1, 2]
    assert connect().get("digits").stacks() == [stack(0), stack(1)]


def test_answer_that_ends_early_is_no_object() -> None:
    text = json.dumps({"kind": "DDPJob"}).encode()
    server = Server(HEAD + b"Content-Length: 100\r\n\r\n" + text)
    server.closes.set()
    with pytest.raises(ClusterError, match="cannot be reached"):
        server.api.get("/x")
