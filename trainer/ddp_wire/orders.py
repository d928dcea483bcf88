"""Order of an attempt: its number, its members and whether the ranks save first.

The members of an attempt are the nodes that train in it. They belong to the order, and not to the
pod, so that a living pod can take part in an attempt of any size. The operator gives an order as
the value of the pod's attempt annotation and as a signed request to the agent:

- `3` is attempt 3 of all nodes for which the pods were created. Jobs of a fixed size use this form,
  which agents of earlier releases understand.
- `4:0-2,5` is attempt 4 of the nodes 0, 1, 2 and 5. The first of them hosts the rendezvous.
- `4:0-2,5:save` is the same order to ranks that can still train: they save at the next step
  boundary before they stop. Without `save`, they stop without a checkpoint.

An agent that is no member of the newest attempt waits with a warm standby.
"""

from dataclasses import dataclass

from ddp_wire import node_ranges

_SAVE = "save"
_MOST_DIGITS = 9


@dataclass(frozen=True)
class Order:
    """Order of one attempt."""

    attempt: int
    """Number of the attempt, from 1."""
    members: frozenset[int] | None = None
    """Nodes that train, at least one. None for all nodes for which the pods were created."""
    save: bool = False
    """Whether the ranks of the previous attempt save a checkpoint before they stop."""

    def to_text(self) -> str:
        """Return the value of the attempt annotation."""
        if self.members is None:
            return str(self.attempt)
        text = f"{self.attempt}:{node_ranges.to_text(self.members)}"
        return f"{text}:{_SAVE}" if self.save else text


def order_from_text(text: str) -> Order | None:
    """Return the order in an attempt annotation, or None if the text is no order.

    The text can be incomplete, because the kubelet may be replacing the file.
    """
    number, colon, rest = text.partition(":")
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        return None
    if not colon:
        return Order(int(number))
    ranges, colon, word = rest.partition(":")
    try:
        members = node_ranges.from_text(ranges)
    except ValueError:
        return None
    if not members or (colon and word != _SAVE):
        return None
    return Order(int(number), members, save=bool(colon))
