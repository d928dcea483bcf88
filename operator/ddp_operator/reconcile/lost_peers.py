"""Find the lost pod because of which the ranks of the other pods failed.

The pod itself may tell nothing: its Kubernetes node has died, or a new pod has taken its name.
"""

from ddp_operator.builders import names
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentStatus


def silent_pod(world: World) -> str | None:
    """Return the name of the first pod that is missing, or that runs without an agent status."""
    for index in world.members:
        pod = world.pod(index)
        if pod is None or (world.agent_status(pod) is None and not pod.terminal):
            return names.pod_name(world.job, index)
    return None


def replaced_pod(world: World) -> str | None:
    """Return the name of a pod that was replaced after the start of the attempt, or None.

    The operator replaces a pod that vanishes before it knows of the start. Node 0's agent sees the
    new agent of another node. The agents also prove it: torchrun starts no rank before it runs on
    all nodes, so an agent that has not launched it belongs to a new pod.
    """
    agents = {pod.name: agent for pod in world.pods if (agent := _current_status(world, pod))}
    for agent in agents.values():
        replaced = agent.failure.replaced_node if agent.failure is not None else None
        if replaced is not None and world.pod(replaced) is not None:
            return names.pod_name(world.job, replaced)
    if not any(agent.timeline and agent.timeline.spawned for agent in agents.values()):
        return None
    for index in world.members:
        pod = world.pod(index)
        if pod is not None and not pod.terminal and not _has_launched(agents.get(pod.name)):
            return pod.name
    return None


def takes_part(world: World, pod: PodView) -> bool:
    """Return whether the ranks of a pod have joined the current attempt."""
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
