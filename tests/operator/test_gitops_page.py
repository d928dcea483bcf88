"""The health check for Argo CD on the page about GitOps, run in Lua 5.1 as Argo CD runs it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.reconcile.invalid_spec import invalid_spec_status
from tests.operator.support import (
    NOW,
    active_job,
    all_pods,
    ended,
    job_manifest,
    plan_for,
    pod,
    summary,
    to_wire,
    with_status,
)

PAGE = Path(__file__).parents[2] / "docs/operate/gitops.md"
ENTRY = "resource.customizations.health.ddp-trainer.dev_DDPJob"


def script() -> str:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (entry,) = [block for block in blocks if ENTRY in block]
    text: str = yaml.safe_load(entry)[ENTRY]
    return text


def health(job: dict[str, Any]) -> tuple[str, str]:
    """Return state and message that the health check computes for a job."""
    lua = LuaRuntime(register_eval=False)
    lua.globals().obj = lua.table_from(job, recursive=True)
    found = lua.execute(script())
    return found["status"], found["message"]


def stored(status: DDPJobStatus, generation: int = 1) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": to_wire(status)}


def status_of(state: str) -> DDPJobStatus:
    """Return a status that the operator writes in a state."""
    job = active_job(formed=state not in {"Pending", "Starting"}, suspend="Suspend" in state)
    pods = all_pods(job, ready=state != "Starting")
    if state == "Pending":
        pods = ()
    elif state in {"Failed", "Recovering"}:
        job = active_job(maxRestarts=int(state == "Recovering"))
        pods = (pod(job, 0), pod(job, 1, phase="Failed", ready=False, termination=ended(1)))
    elif state == "Completed":
        pods = all_pods(job, phase="Succeeded", ready=False, termination=ended(0))
    elif state == "Invalid":
        written = invalid_spec_status(job_manifest(), "spec.nodes: must be at least 1", NOW)
        return DDPJobStatus.model_validate(written)
    status = plan_for(job, pods).status
    if state == "Suspended":
        status = plan_for(with_status(job, **dict(status))).status
    return status


STATES = {
    "Pending": "Progressing",
    "Starting": "Progressing",
    "Running": "Progressing",
    "Recovering": "Progressing",
    "Suspending": "Progressing",
    "Suspended": "Suspended",
    "Completed": "Healthy",
    "Failed": "Degraded",
    "Invalid": "Degraded",
}


@pytest.mark.parametrize(("state", "expected"), STATES.items())
def test_health_check_shows_the_state_of_a_job_and_its_message(state: str, expected: str) -> None:
    status = status_of(state)
    _, shown, message = summary(status)
    assert shown == state.replace("Suspending", "Suspended")
    assert health(stored(status)) == (expected, message)


def test_spec_that_the_operator_has_not_seen_is_progressing() -> None:
    for job in (stored(status_of("Completed"), generation=2), {"metadata": {"generation": 1}}):
        assert health(job) == ("Progressing", "the operator has not seen this spec yet")


def test_every_state_of_a_job_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([\w, ]+) \| (\w+) \| (\w+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    shown = {name: argo for names, _, argo in rows for name in names.split(", ")}
    known = {name: argo for name, argo in STATES.items() if name != "Suspending"}
    assert {name: shown.get(name) for name in known} == known


def test_resumed_job_is_no_longer_suspended() -> None:
    job: DDPJob = active_job(suspend=True)
    suspended = plan_for(with_status(job, **dict(plan_for(job, ()).status))).status
    resumed = with_status(active_job(), **dict(suspended))
    assert health(stored(plan_for(resumed).status))[0] == "Progressing"
