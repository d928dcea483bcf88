"""Find the lost pod because of which the ranks of the other pods failed.

The pod itself may tell nothing: its Kubernetes node has died, or a new pod has taken its name.
"""

from ddp_operator.builders import names
from ddp_operator.reconcile.world import PodView, World
from ddp_wire.contract import AgentStatus


def silent_pod(world: World) -> str | None:
    """Return the name of the first pod that is missing, or that runs without an agent report."""
    for index in range(world.job.nodes):
        pod = world.pod(index)
        if pod is None or (world.report(pod) is None and not pod.terminal):
            return names.pod_name(world.job, index)
    return None


def replaced_pod(world: World) -> str | None:
    """Return the name of a pod that was replaced after the start of the attempt, or None.

    The operator replaces a pod that vanishes before it knows of the start. Node 0's agent sees the
    new agent of another node. The agents also prove it: torchrun starts no rank before it runs on
    all nodes, so an agent that has not launched it belongs to a new pod.
    """
    reports = {pod.name: report for pod in world.pods if (report := _current_report(world, pod))}
    for report in reports.values():
        replaced = report.failure.replaced_node if report.failure is not None else None
        if replaced is not None and world.pod(replaced) is not None:
            return names.pod_name(world.job, replaced)
    if not any(report.timeline and report.timeline.spawned for report in reports.values()):
        return None
    for index in range(world.job.nodes):
        pod = world.pod(index)
        if pod is not None and not pod.terminal and not _has_launched(reports.get(pod.name)):
            return pod.name
    return None


def takes_part(world: World, pod: PodView) -> bool:
    """Return whether the ranks of a pod have joined the current attempt."""
    report = _current_report(world, pod)
    return report is not None and has_joined(report)


def has_joined(report: AgentStatus) -> bool:
    """Return whether the ranks of an agent have joined the process group."""
    return report.timeline is not None and report.timeline.joined is not None


def _current_report(world: World, pod: PodView) -> AgentStatus | None:
    report = world.report(pod)
    return report if report is not None and report.attempt == world.job.status.attempt else None


def _has_launched(report: AgentStatus | None) -> bool:
    if report is None or report.timeline is None:
        return False
    return report.timeline.launched is not None
