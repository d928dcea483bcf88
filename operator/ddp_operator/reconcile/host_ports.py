"""Give each job with `network.hostNetwork` a block of the ports that the installation reserves.

The status records the block before any pod exists, so a restarted operator continues with it. The
job keeps its block until it has ended or is suspended, and none of its pods can use a port
(`lifecycle`).
"""

from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.host_ports import PORTS_PER_JOB, PortRange
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.waiting import wait_without_pods
from ddp_operator.reconcile.world import World

EXHAUSTED = "HostPortsExhausted"
"""Reason of the condition PodsReady while no block of ports is free."""


def why_no_host_network(spec: DDPJobSpec, ports: PortRange | None) -> str | None:
    """Return an error message if a job asks for a host network that the settings forbid."""
    if not spec.uses_host_network or ports is not None:
        return None
    return (
        "spec.network.hostNetwork: must not be set, because workers.hostPorts of this installation"
        " reserves no ports"
    )


def lacks_ports(world: World, defaults: Defaults) -> bool:
    """Return whether a job must wait until another job releases its block."""
    waits = world.job.spec.uses_host_network and defaults.host_ports is not None
    return waits and world.free_port is None


def wait(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a job that waits, without pods, for a free block."""
    message = (
        f"all blocks of {PORTS_PER_JOB} ports in {defaults.host_ports} are in use by other jobs"
        " with network.hostNetwork: this job starts when one of them has ended; reserve more ports"
        " with workers.hostPorts of the chart, or remove network.hostNetwork from this job"
    )
    return wait_without_pods(world, EXHAUSTED, message)
