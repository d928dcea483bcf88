"""Tests of the reports of local pods that end or cannot start."""

import sys
from pathlib import Path

import aiohttp
import pytest

from ddp_agent.config import AgentConfig
from ddp_operator.builders.pod import build_pod
from ddp_operator.cluster.local.pod import LocalPod, container_environment
from ddp_operator.reconcile.pod_view import Termination, view_pod
from ddp_wire.contract import Env
from tests.operator.support import DEFAULTS, new_job


async def end_of(tmp_path: Path, program: str, *, log: Path | None = None) -> Termination:
    """Run a program as the container of a pod. Return its end as the operator sees it."""
    manifest = build_pod(new_job(), 0, 1, DEFAULTS)
    manifest["metadata"]["uid"] = "uid"
    manifest["spec"]["containers"][0]["command"] = [sys.executable, "-c", program]
    environment: dict[str, str] = {
        Env.AGENT_BIND: "127.0.0.1",
        Env.AGENT_PORT: "1",
        Env.TERMINATION_LOG: str(tmp_path / "message"),
    }
    log = log or tmp_path / "logs" / "digits-0.log"
    pod = LocalPod(manifest, tmp_path / "home", log, environment, lambda _: None)
    async with aiohttp.ClientSession() as session:
        await pod.run(session)
    found = view_pod(pod.manifest).termination
    assert found is not None
    return found


async def test_last_line_of_the_log_explains_an_error_without_a_termination_message(
    tmp_path: Path,
) -> None:
    found = await end_of(tmp_path, "print('one', flush=True); raise SystemExit('no module')")
    assert (found.exit_code, found.reason, found.words) == (1, "Error", "no module")


async def test_empty_termination_message_is_replaced_by_the_last_line_of_the_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "message").touch()
    found = await end_of(tmp_path, "raise SystemExit('no module')")
    assert found.words == "no module"


async def test_container_that_succeeds_has_no_error_text(tmp_path: Path) -> None:
    found = await end_of(tmp_path, "print('one')")
    assert (found.exit_code, found.reason, found.words) == (0, "Completed", "")


async def test_termination_message_that_is_no_valid_utf_8_is_ignored(tmp_path: Path) -> None:
    message = tmp_path / "message"
    found = await end_of(tmp_path, f"open({str(message)!r}, 'wb').write(b'\\xff'); exit(3)")
    assert (found.exit_code, found.final) == (3, None)


@pytest.mark.parametrize("place", ["home", "logs"])
async def test_pod_whose_files_cannot_be_written_fails_with_the_reason(
    tmp_path: Path, place: str
) -> None:
    """Otherwise the pod, and with it the run, would stay Pending forever."""
    (tmp_path / place).touch()
    found = await end_of(tmp_path, "")
    assert (found.exit_code, found.reason) == (128, "StartError")
    assert place in found.words


def test_references_to_variables_are_expanded_as_in_a_pod() -> None:
    given = [{"name": "RUN", "value": "$(DDP_JOB_NAME)-$$"}]
    job = new_job(command=["a", "$(RUN)", "$$(RUN)"], env=given)
    environment = container_environment(build_pod(job, 0, 1, DEFAULTS))
    assert environment["RUN"] == "digits-$"
    command = AgentConfig.from_environment(environment).rank_command()
    assert command == ["a", "digits-$", "$(RUN)"]
