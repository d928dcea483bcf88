"""Text of ranks and of other users cannot change the terminal of the user who reads it."""

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.cli.log_view import LogView
from ddp_operator.cli.main import main
from ddp_operator.client.jobs import Job
from ddp_operator.client.log_lines import LogLine
from ddp_operator.client.rank_stacks import RankStack
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import running

CONTROLS = [chr(code) for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))]
"""Characters of C0 and C1, with CSI and OSC in one character, without tab and line feed."""
HOSTILE = "a\x9b2Jb\x9d0;title\x07c\x1b[2Jd\x1b]0;x\x07e\x90f\x85g"


def shown(*arguments: str) -> str:
    """Return what a verb prints to a terminal, without the colours."""
    ended = CliRunner().invoke(main, list(arguments), color=True)
    assert ended.exit_code in {0, 2}
    return ended.output


def is_harmless(text: str) -> bool:
    """Return whether a text has no control characters but line feeds and colours of `ddpjob`."""
    return not any(one in re.sub(r"\x1b\[[0-9;]*m", "", text) for one in CONTROLS)


@pytest.fixture
def jobs(cluster: JobsApi) -> JobsApi:
    cluster.put(running())
    return cluster


@pytest.mark.parametrize("code", [ord(one) for one in CONTROLS])
def test_line_of_a_rank_has_no_control_character(code: int) -> None:
    line = LogLine(f"a{chr(code)}[b", "digits-0", 0)
    assert LogView().format(line).endswith(" a[b")


def test_colours_of_a_rank_stay() -> None:
    line = LogLine("\x1b[31mred\x1b[0m \t\u00e9", "digits-0", 0)
    assert LogView().format(line).endswith(" \x1b[31mred\x1b[0m \t\u00e9")


def test_logs_on_a_terminal_and_in_a_pipe_are_harmless(jobs: JobsApi) -> None:
    jobs.logs["digits-0"] = log = PodLog()
    log.add(0, f"[rank 0] {HOSTILE}")
    log.add(1, HOSTILE)
    assert is_harmless(shown("logs", "digits"))
    plain = CliRunner().invoke(main, ["logs", "digits"]).stdout
    assert is_harmless(plain)
    assert "\x1b" not in plain
    assert CliRunner().invoke(main, ["logs", "digits", "-o", "json"]).stdout.isascii()


def test_events_of_other_users_are_harmless(jobs: JobsApi) -> None:
    uid = running()["metadata"].get("uid")
    event: dict[str, Any] = {
        "metadata": {"name": "e"},
        "involvedObject": {"uid": uid},
        "reason": HOSTILE,
        "message": HOSTILE,
        "lastTimestamp": HOSTILE,
    }
    jobs.objects["/api/v1/namespaces/team-a/events/e"] = event
    text = shown("events", "digits")
    assert "title" in text
    assert is_harmless(text)


def test_stacks_and_the_answer_of_an_agent_are_harmless(
    jobs: JobsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    del jobs
    monkeypatch.setattr(Job, "stacks", lambda _: [RankStack(0, f"Thread:\n  {HOSTILE}")])
    monkeypatch.setattr(Job, "profile", lambda *_: HOSTILE)
    text = shown("stacks", "digits")
    assert "Thread:\n  a" in text
    assert is_harmless(text)
    assert is_harmless(shown("profile", "digits"))


def test_state_of_a_job_is_harmless(cluster: JobsApi) -> None:
    found = running()
    found["status"]["conditions"][0]["message"] = HOSTILE
    found["status"]["ready"] = HOSTILE
    cluster.put(found)
    for verb in (["list"], ["list", "-o", "wide"], ["status", "digits"], ["why", "digits"]):
        assert is_harmless(shown(*verb))
    assert is_harmless(shown("wait", "digits", "--for", "Running"))


def test_message_of_the_api_server_is_harmless(jobs: JobsApi) -> None:
    jobs.refused["GET", "/digits"] = (500, HOSTILE)
    assert is_harmless(CliRunner().invoke(main, ["status", "digits"], color=True).output)
    del jobs.refused["GET", "/digits"]
    jobs.refused["GET", "/log"] = (500, HOSTILE)
    ended = CliRunner().invoke(main, ["logs", "digits"], color=True)
    assert ended.exit_code == CommandCode.NO_CLUSTER
    assert is_harmless(ended.output)


def test_output_in_a_bundle_is_harmless(jobs: JobsApi, tmp_path: Path) -> None:
    jobs.logs["digits-0"] = log = PodLog()
    log.add(0, f"[rank 0] {HOSTILE}")
    path = tmp_path / "x.tgz"
    shown("support-bundle", "digits", "-o", str(path))
    with tarfile.open(path) as archive:
        member = archive.extractfile("digits-support/output.log")
        assert member is not None
        text = member.read().decode()
    assert "title" in text
    assert is_harmless(text)
