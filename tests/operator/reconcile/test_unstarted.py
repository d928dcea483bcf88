"""Containers that end before their agent works: the status states why."""

import pytest

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.world import Termination
from tests.operator.support import active_job, ended, plan_for, pod

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
def test_case_90_status_states_why_a_container_did_not_work(
    termination: Termination, reason: str, cause: Cause, message: str
) -> None:
    job = active_job()
    dead = pod(job, 1, phase="Failed", ready=False, termination=termination)
    failure = plan_for(job, [pod(job, 0), dead]).status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause, failure.message) == (reason, cause, message)
    assert failure.exit_code == termination.exit_code
