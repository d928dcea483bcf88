"""Define the part of `DDPJob.status` about the members of an attempt and their changes."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from ddp_operator.api.base import StatusModel
from ddp_wire import node_ranges
from ddp_wire.plain_text import PlainText

RESIZED = "Resized"
"""Reason of an attempt that ended because the next one has other members."""


def _checked_ranges(text: str) -> str:
    """Return the text of a set of node indices after a check of its ranges.

    Raises:
        ValueError: A range ends before it begins.
    """
    node_ranges.from_text(text)
    return text


NodeRanges = Annotated[
    str,
    AfterValidator(_checked_ranges),
    StringConstraints(
        pattern=r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$", max_length=32768
    ),
]
"""Set of node indices as text, for example 0-2,7."""


class ResizeStatus(StatusModel):
    """One change of the members of an elastic job."""

    attempt: int
    """Number of the attempt that the change started."""
    from_nodes: int
    """Number of nodes that trained before the change."""
    to_nodes: int
    """Number of nodes of the new attempt."""
    message: Annotated[PlainText, StringConstraints(max_length=1024)] = ""
    """Cause of the change, as a sentence."""
    time: datetime
    """Time at which the operator decided on the change."""
    step: int | None = None
    """Completed updates at the time of the decision."""
    milliseconds: Annotated[int, Field(ge=0)] | None = None
    """Milliseconds from the decision until every rank had completed its first update in the new size. Absent until then."""  # noqa: E501
    repeated_updates: Annotated[int, Field(ge=0)] | None = None
    """Number of updates that the ranks repeated because no checkpoint contained them. Absent until the number is known."""  # noqa: E501


class DepartureStatus(StatusModel):
    """Loss of a member: the Kubernetes node on which its pod ran, and the time."""

    node: Annotated[PlainText, StringConstraints(max_length=253)]
    """Name of the Kubernetes node."""
    time: datetime
    """Time at which the operator saw that the pod of the member was lost."""
