"""Select the root cause among the faults of an attempt.

One event makes many nodes fail within milliseconds, because ranks that lose a peer fail too. Their
agents mark these failures as secondary. The earliest of all other faults is the root cause. Its
cause selects the budget, and the user reads its message.

The status with the first failure may arrive last, or never if its Kubernetes node has died. The
operator therefore waits up to `ROOT_CAUSE_WAIT` for it. Afterwards it looks for a pod that no
longer answers or that has been replaced, because such a pod explains the failures of its peers.
"""

from datetime import timedelta

from ddp_operator.api.status import Cause
from ddp_operator.reconcile import hangs, lost_peers
from ddp_operator.reconcile.fault import STOPPED, Fault
from ddp_operator.reconcile.world import World

PEER_LOST = "PeerLost"
"""Reason of an attempt whose ranks lost a peer that no longer answers."""
ROOT_CAUSE_WAIT = timedelta(seconds=2)
"""Maximum wait for the root cause after a secondary failure, because its status may arrive
later."""


def find_root_cause(faults: list[Fault], world: World) -> Fault | None:
    """Return the root cause, or None while the status that contains it may still arrive.

    Raises:
        ValueError: `faults` is empty.
    """
    if not faults:
        raise ValueError("faults must hold at least one fault, but the list is empty")
    primary = [fault for fault in faults if not fault.secondary]
    if primary and primary[0].failure.reason == hangs.HUNG and not hangs.is_complete(world):
        return None
    if primary:
        found = min(primary, key=_precedence)
        return _stop_origin(found, world) if found.failure.reason == STOPPED else found
    if _may_wait(world):
        return None
    first = min(faults, key=lambda fault: fault.at)
    if silent := lost_peers.silent_pod(world):
        return _lost_peer(first, f"{silent} does not answer", silent)
    if replaced := lost_peers.replaced_pod(world):
        return _lost_peer(first, f"{replaced} was replaced", replaced)
    return first


def _may_wait(world: World) -> bool:
    """Return whether the operator may still wait for the root cause."""
    return world.undecided_for is None or world.undecided_for < ROOT_CAUSE_WAIT


def _stop_origin(stop: Fault, world: World) -> Fault | None:
    """Return the fault that made the ranks of a pod save and stop, or None while it is unknown.

    All ranks stop when one pod is deleted. If that pod was deleted before the operator saw that all
    ranks had joined, the operator has treated it as a missing pod and may have replaced it. The
    agent statuses identify the pod, because the new pod has not joined this attempt. Timestamps
    cannot identify it, because the clocks of two machines differ.
    """
    stopped_pod = next((pod for pod in world.pods if pod.name == stop.failure.pod), None)
    stopped_agent = world.agent_status(stopped_pod) if stopped_pod is not None else None
    if stopped_agent is None or not lost_peers.has_joined(stopped_agent):
        return stop
    for index in world.members:
        pod = world.pod(index)
        if pod is None or pod.terminal or lost_peers.takes_part(world, pod):
            continue
        if _may_wait(world):
            return None
        # A running pod without a status may have stopped on the same request.
        if pod.phase != "Running" or world.agent_status(pod) is not None:
            return _lost_peer(stop, f"{pod.name} left the attempt", pod.name)
    return stop


def _lost_peer(first: Fault, why: str, pod: str) -> Fault:
    """Return the fault of a silent or replaced pod, which explains the failures of its peers.

    Either the pod's Kubernetes node or agent has died and the kubelet has not reported it, or a new
    pod has taken its name.
    """
    message = f"{why}, and its peers could not continue: {first.failure.message}"
    update = {
        "cause": Cause.INFRASTRUCTURE,
        "reason": PEER_LOST,
        "pod": pod,
        "node": None,
        "message": message,
    }
    return Fault(first.failure.model_copy(update=update))


def _precedence(fault: Fault) -> tuple[bool, bool, float]:
    # All ranks stop on request when one pod is deleted: the fault of that pod is the better cause.
    return not fault.permanent, fault.failure.reason == STOPPED, fault.at
