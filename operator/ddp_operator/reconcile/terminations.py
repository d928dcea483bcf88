"""Classify containers and pods that ended without an agent status."""

from ddp_operator.api.status import Cause
from ddp_operator.reconcile.pod_view import PodView, Termination
from ddp_wire.contract import ExitCode

VOLUME_FAILED = "VolumeFailed"
"""Reason of an attempt whose ranks could not read or write a volume."""
CORRUPTED = "SilentCorruption"
"""Reason of an attempt in which the weights of a rank differed from those of most ranks."""
REPLICAS_DIFFER = "ReplicasDiffer"
"""Reason of an attempt in which the weights of the ranks differed, and no rank is blamed."""
NETWORK_FAILED = "NetworkFailed"
"""Reason of an attempt that could not start because a node could not reach node 0."""
_KILLED = 137
"""Exit code of a container that SIGKILL ended. A program never returns it by itself."""
_UNKNOWN = 255
"""Exit code that the container runtime reports if it did not see the container's end, because the
Kubernetes node restarted or the shim was killed. No agent returns this code."""
_UNSEEN = "ContainerStatusUnknown"
"""Reason that the kubelet reports if the runtime did not see the container's end."""
NOT_STARTED = {"StartError", "ContainerCannotRun"}
"""Reasons that the kubelet reports if the runtime could not start a container."""
_NOT_EXECUTED = 'exec: "'
"""Start of runc's error about a command that the image lacks or that is not executable. Other
errors come from the Kubernetes node, for example from the hook that adds GPUs."""


def why_pod_failed(pod: PodView) -> str:
    """Return the kubelet's reason and message about a pod that failed as a whole."""
    reason = pod.reason or "PodFailed"
    return f"failed: {reason}: {pod.message}" if pod.message else f"failed: {reason}"


def classify(pod: PodView, end: Termination) -> tuple[Cause, str, str]:
    """Return cause, reason and message predicate for a container without an agent status."""
    if end.reason == "OOMKilled":
        return Cause.APPLICATION, "OOMKilled", "ran out of memory"
    if pod.reason is not None:
        return Cause.INFRASTRUCTURE, pod.reason, why_pod_failed(pod)
    if end.reason in NOT_STARTED:
        cause = Cause.APPLICATION if _NOT_EXECUTED in end.words else Cause.INFRASTRUCTURE
        return cause, end.reason, f"could not start: {end.words}"
    if end.exit_code == ExitCode.VOLUME_FAILED:
        return Cause.INFRASTRUCTURE, VOLUME_FAILED, f"ended with exit code {end.exit_code}"
    if end.exit_code == ExitCode.CORRUPTED:
        return Cause.INFRASTRUCTURE, CORRUPTED, f"ended with exit code {end.exit_code}"
    if end.final is None and (end.exit_code == _UNKNOWN or end.reason in {_UNSEEN, "Unknown"}):
        how = "ended unobserved: its Kubernetes node or its container runtime was restarted"
        return Cause.INFRASTRUCTURE, _UNSEEN, f"{how} (exit code {end.exit_code})"
    # Only the host can send SIGKILL to the agent, because it is PID 1 of the container.
    outside = end.exit_code == _KILLED and end.final is None
    cause = Cause.INFRASTRUCTURE if outside else Cause.APPLICATION
    words = f": {end.words}" if end.words and not outside else ""
    return cause, "PodFailed", f"ended with exit code {end.exit_code}{words}"
