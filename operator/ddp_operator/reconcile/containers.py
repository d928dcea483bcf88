"""Describe the containers of a pod that are not the worker: init containers and sidecars.

These containers do not affect the ranks, with one exception: if an init container fails, the worker
never starts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_wire import contract
from ddp_wire.plain_text import plain_text

NORMAL_START = {"ContainerCreating", "PodInitializing"}
"""Waiting reasons that the kubelet reports for every pod that starts normally."""
_WORDS_CHARACTERS = 300
"""Maximum length of a container's last output in a message, in characters."""
_GATES = "ReadinessGatesNotReady"
_OTHERS_NOT_READY = {"ContainersNotReady", _GATES}
"""Reasons for which another container or a readiness gate can make the condition Ready false."""

Status = Mapping[str, Any]
"""Status of a pod or of a container, as the API server stores it."""


@dataclass(frozen=True)
class InitFailure:
    """Failure of an init container, after which the worker never starts."""

    container: str
    exit_code: int
    reason: str
    """Reason that the kubelet reports, for example OOMKilled."""
    words: str
    """Last line that the container wrote, or the error of the container runtime."""


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty. Return only the end of a long line."""
    lines = [plain for line in text.splitlines() if (plain := plain_text(line).strip())]
    return lines[-1][-_WORDS_CHARACTERS:] if lines else ""


def worker_is_ready(conditions: Mapping[str, Status], worker: Status) -> bool:
    """Return whether the worker container is ready, even if the pod is not.

    If the Kubernetes node is lost, the worker's own field stays true. Only the pod's condition
    Ready turns false, without a reason.
    """
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return True
    return bool(worker.get("ready")) and ready.get("reason") in _OTHERS_NOT_READY


def init_failure(spec: Status, status: Status) -> InitFailure | None:
    """Return the failure of an init container that ended the pod, or None."""
    if status.get("phase") != "Failed":
        return None
    for one in _init_statuses(spec, status):
        end = (one.get("state") or {}).get("terminated") or {}
        code = int(end.get("exitCode") or 0)
        if code:
            words = last_line(end.get("message") or "")
            return InitFailure(one.get("name", ""), code, end.get("reason") or "", words)
    return None


def init_waiting(spec: Status, status: Status) -> str | None:
    """Return the init container that the worker waits for, as a message, or None."""
    for one in _init_statuses(spec, status):
        state = one.get("state") or {}
        if waits := state.get("waiting"):
            if waits.get("reason") not in NORMAL_START:
                return f"init container {one.get('name')}: {_sentence(waits)}"
        elif "terminated" not in state:
            return f"PodInitializing: init container {one.get('name')} is running"
    return None


def trouble_beside(
    spec: Status, status: Status, conditions: Mapping[str, Status], worker: Status
) -> str | None:
    """Return a message about a problem of another container while the worker is ready, or None."""
    if not worker.get("ready"):
        return None
    for one in _beside(spec, status):
        state = one.get("state") or {}
        name, end = one.get("name"), state.get("terminated")
        if end and end.get("exitCode"):
            reason = f" ({end['reason']})" if end.get("reason") not in (None, "Error") else ""
            return f"container {name} ended with exit code {end['exitCode']}{reason}"
        if (waits := state.get("waiting")) and waits.get("reason") not in NORMAL_START:
            return f"container {name} waits: {_sentence(waits)}"
        if not end and not one.get("ready"):
            return f"container {name} is not ready"
    ready = conditions.get("Ready", {})
    if ready.get("status") == "False" and ready.get("reason") == _GATES:
        return str(ready.get("message") or _GATES)
    return None


def waiting(container: Status) -> str | None:
    """Return reason and message of a waiting container, or None."""
    found = (container.get("state") or {}).get("waiting")
    return _sentence(found) if found else None


def _sentence(waiting: Status) -> str:
    reason, message = waiting.get("reason", "Waiting"), waiting.get("message")
    return f"{reason}: {message}" if message else str(reason)


def _beside(spec: Status, status: Status) -> Iterator[Status]:
    sidecars = _sidecars(spec)
    for one in status.get("containerStatuses") or []:
        if one.get("name") != contract.WORKER_CONTAINER:
            yield one
    for one in status.get("initContainerStatuses") or []:
        if one.get("name") in sidecars:
            yield one


def _init_statuses(spec: Status, status: Status) -> Iterator[Status]:
    """Yield the statuses of the init containers that end before the worker starts."""
    sidecars = _sidecars(spec)
    for one in status.get("initContainerStatuses") or []:
        if one.get("name") not in sidecars:
            yield one


def _sidecars(spec: Status) -> set[str]:
    """Return the names of the init containers that run beside the worker."""
    given = spec.get("initContainers") or []
    return {one["name"] for one in given if one.get("restartPolicy") == "Always"}
