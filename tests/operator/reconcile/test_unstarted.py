"""Tests that the status states why a container ended without a report of its agent."""

from dataclasses import replace

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.pod_view import Termination
from tests.operator.support import (
    active_job,
    ended,
    failed_status,
    plan_for,
    pod,
    pod_manifest,
    view_of,
)

NO_PROGRAM = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc"
    " create failed: unable to start container process: error during container init: exec:"
    ' "python3": executable file not found in $PATH'
)
NO_GPU = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc"
    " create failed: unable to start container process: error during container init: error running"
    " prestart hook #0: exit status 1, stderr: nvidia-container-cli: initialization error: nvml"
    " error: driver not loaded"
)


@pytest.mark.parametrize(
    ("termination", "reason", "cause", "message"),
    [
        (
            ended(1, words="/usr/bin/python3: No module named ddp_agent"),
            "PodFailed",
            Cause.APPLICATION,
            "digits-1 ended with exit code 1: /usr/bin/python3: No module named ddp_agent",
        ),
        (
            ended(128, reason="StartError", words=NO_PROGRAM),
            "StartError",
            Cause.APPLICATION,
            f"digits-1 could not start: {NO_PROGRAM}",
        ),
        (
            ended(128, reason="StartError", words=NO_GPU),
            "StartError",
            Cause.INFRASTRUCTURE,
            f"digits-1 could not start: {NO_GPU}",
        ),
        (
            ended(137, words="update 12: loss 0.3"),
            "PodFailed",
            Cause.INFRASTRUCTURE,
            "digits-1 ended with exit code 137",
        ),
    ],
    ids=["no agent", "no program", "no GPU", "killed from outside"],
)
def test_status_states_why_a_container_did_not_work(
    termination: Termination, reason: str, cause: Cause, message: str
) -> None:
    job = active_job()
    dead = pod(job, 1, phase="Failed", ready=False, termination=termination)
    failure = plan_for(job, [pod(job, 0), dead]).status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause, failure.message) == (reason, cause, message)
    assert failure.exit_code == termination.exit_code


@pytest.mark.parametrize(
    "termination",
    [
        ended(255, reason="Unknown"),
        ended(255, words="INFO 12:00:01 update 12: loss 0.3"),
        ended(137, reason="ContainerStatusUnknown"),
    ],
    ids=["node restarted", "shim killed", "kubelet does not know"],
)
def test_container_end_by_a_restart_of_the_kubernetes_node_is_an_infrastructure_fault(
    termination: Termination,
) -> None:
    job = active_job()
    dead = pod(job, 1, phase="Failed", ready=False, termination=termination)
    failure = plan_for(job, [pod(job, 0), dead]).status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause) == ("ContainerStatusUnknown", Cause.INFRASTRUCTURE)
    assert failure.message == (
        "digits-1 ended unobserved: its Kubernetes node or its container runtime was restarted"
        f" (exit code {termination.exit_code})"
    )


def test_rank_that_exits_with_255_is_an_application_failure() -> None:
    job = active_job()
    end = ended(255, final=failed_status(1, exit_code=255, message="it gave up"))
    dead = pod(job, 1, phase="Failed", ready=False, termination=end)
    failure = plan_for(job, [pod(job, 0), dead]).status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause) == ("RankFailed", Cause.APPLICATION)


@pytest.mark.parametrize("termination", [None, ended(137)], ids=["pod", "container"])
def test_message_quotes_the_kubelet_about_a_pod_that_failed_as_a_whole(
    termination: Termination | None,
) -> None:
    job = active_job()
    manifest = pod_manifest(
        job, 1, phase="Failed", reason="Evicted", message="The node was low on resource: memory."
    )
    dead = replace(view_of(manifest), termination=termination)
    failure = plan_for(job, [pod(job, 0), dead]).status.last_failure
    assert failure is not None
    assert failure.message == "digits-1 failed: Evicted: The node was low on resource: memory."
