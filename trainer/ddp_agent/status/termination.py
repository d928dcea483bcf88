"""Write the termination message: the last agent status, shortened to the kubelet's limit.

Process: agent (main thread, at its end).
"""

import logging
from pathlib import Path

from ddp_wire.contract import TERMINATION_MESSAGE_BYTES
from ddp_wire.messages import AgentStatus

_log = logging.getLogger("ddp_agent")


def write_termination_message(path: Path, status: AgentStatus) -> None:
    """Write the status to the termination message file, which the kubelet reads."""
    try:
        path.write_text(shrink_to_fit(status).to_json(), encoding="utf-8")
    except OSError as error:
        _log.warning("the termination message could not be written to %s: %s", path, error)


def shrink_to_fit(status: AgentStatus) -> AgentStatus:
    """Return the status with so few details that it fits a termination message.

    Remove details in this order until it fits: fields that the operator does not read there,
    metrics, the stacks of exit problems, the start of the traceback, the end of the message.
    """
    slim = status.model_copy(update={"command": [], "ranks": status.ranks[:1]})
    if _excess(slim) > 0:
        ranks = [heartbeat.model_copy(update={"progress": None}) for heartbeat in slim.ranks]
        progress = slim.progress and slim.progress.model_copy(update={"metrics": {}})
        slim = slim.model_copy(update={"ranks": ranks, "progress": progress})
    if _excess(slim) > 0 and slim.exit_problems:
        problems = [one.model_copy(update={"stack": ""}) for one in slim.exit_problems]
        slim = slim.model_copy(update={"exit_problems": problems[:3]})
    failure = slim.failure
    while failure is not None and (failure.traceback or failure.message) and _excess(slim) > 0:
        # A character takes up to six bytes in JSON. Dividing by six never cuts more than needed.
        cut = max(1, _excess(slim) // 6)
        if failure.traceback:
            failure = failure.model_copy(update={"traceback": failure.traceback[cut:]})
        else:
            failure = failure.model_copy(update={"message": failure.message[:-cut]})
        slim = slim.model_copy(update={"failure": failure})
    if _excess(slim) > 0:
        slim = slim.model_copy(update={"ranks": [], "progress": None, "checkpoint": None})
    return slim


def _excess(status: AgentStatus) -> int:
    """Return the number of bytes by which the status exceeds the limit; at most 0 if it fits."""
    return len(status.to_json().encode()) - TERMINATION_MESSAGE_BYTES
