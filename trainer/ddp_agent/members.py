"""Members of one attempt, and the part of this agent's node in it.

Process: agent.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from ddp_agent.config import AgentConfig
from ddp_wire import node_ranges
from ddp_wire.orders import Order

_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class Members:
    """Members of one attempt, and the index of this agent's node."""

    attempt: int
    nodes: frozenset[int]
    own: int
    """Index of this agent's node."""
    host: str
    """Address of the first member, which hosts the start barrier and the rendezvous."""
    digest: str = ""
    """Digest of the members that the order names, or "" for an order without members."""

    @property
    def first(self) -> int:
        """Return the first member."""
        return min(self.nodes)

    @property
    def is_first(self) -> bool:
        """Return whether this node is the first member of the attempt."""
        return self.own == self.first

    @property
    def takes_part(self) -> bool:
        """Return whether this node is a member of the attempt."""
        return self.own in self.nodes

    @property
    def are_named(self) -> bool:
        """Return whether the order names the members, so that some nodes may not be members."""
        return bool(self.digest)

    @cached_property
    def text(self) -> str:
        """Members in the text form of `node_ranges`."""
        return node_ranges.to_text(self.nodes)


def members_of(config: AgentConfig, order: Order) -> Members:
    """Return the members of an attempt. An order without members means all nodes of the job."""
    if order.members is None:
        nodes = frozenset(range(config.nodes))
        return Members(order.attempt, nodes, config.node_index, config.rendezvous_host)
    host = config.rendezvous_host
    if config.address_pattern:
        host = config.address_pattern.format(index=min(order.members))
    text = node_ranges.to_text(order.members)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    return Members(order.attempt, order.members, config.node_index, host, digest)
