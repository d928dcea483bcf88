"""Find the lost pod that made the ranks of all other pods fail.

That pod may report nothing, because its Kubernetes node has died or a new pod has taken its name.
"""

from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentStatus


def silent_pod(world: World) -> str | None:
    """Return the name of the first pod that is missing, or that runs without an agent status."""
    for index in world.members:
        pod = world.pod(index)
        if pod is None or (world.agent_status(pod) is None and not pod.terminal):
            return world.pod_name(index)
    return None


def replaced_pod(world: World) -> str | None:
    """Return the name of a pod that was replaced after the start of the attempt, or None.

    The operator replaces a pod that disappears before the operator knows of the start. Two facts
    show the replacement. Node 0's agent sees a new agent of that node. An agent that has not
    launched torchrun belongs to a new pod, because torchrun starts ranks only when it runs on all
    nodes.
    """
    agents = {pod.name: agent for pod in world.pods if (agent := _current_status(world, pod))}
    for agent in agents.values():
        replaced = agent.failure.replaced_node if agent.failure is not None else None
        if replaced is not None and world.pod(replaced) is not None:
            return world.pod_name(replaced)
    if not any(agent.timeline and agent.timeline.spawned for agent in agents.values()):
        return None
    for index in world.members:
        pod = world.pod(index)
        if pod is not None and not pod.terminal and not _has_launched(agents.get(pod.name)):
            return pod.name
    return None


def takes_part(world: World, pod: PodView) -> bool:
    """Return whether the ranks of a pod have joined the process group of the current attempt."""
    agent = _current_status(world, pod)
    return agent is not None and has_joined(agent)


def has_joined(agent: AgentStatus) -> bool:
    """Return whether the ranks of an agent have joined the process group."""
    return agent.timeline is not None and agent.timeline.joined is not None


def _current_status(world: World, pod: PodView) -> AgentStatus | None:
    agent = world.agent_status(pod)
    return agent if agent is not None and agent.attempt == world.job.status.attempt else None


def _has_launched(agent: AgentStatus | None) -> bool:
    if agent is None or agent.timeline is None:
        return False
    return agent.timeline.launched is not None
