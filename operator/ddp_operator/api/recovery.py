"""Define the part of `DDPJob.status` about the last recovery."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, StringConstraints

from ddp_operator.api.base import StatusModel
from ddp_wire.plain_text import PlainText

_OLD_ORDERED_NAME = "toldMilliseconds"
"""Former JSON name of orderedMilliseconds, which the next release drops."""


def _add_old_name(schema: dict[str, Any]) -> None:
    """Add the former name of orderedMilliseconds to a JSON schema."""
    schema["properties"][_OLD_ORDERED_NAME] = {
        "type": "integer",
        "description": "Old name of orderedMilliseconds. The operator only reads it.",
    }


class RecoveryStatus(StatusModel):
    """Timeline of one recovery. Each value is the milliseconds from the fault until the last node had finished a step of the recovery. The times come from the clocks of several Kubernetes nodes."""  # noqa: E501

    # The API server prunes fields that the CRD lacks, so the CRD keeps the old name too.
    model_config = ConfigDict(json_schema_extra=_add_old_name)

    attempt: int
    """Number of the attempt that the recovery started."""
    fault: Annotated[PlainText, StringConstraints(max_length=256)] = ""
    """Description of the fault, as a sentence."""
    time: datetime
    """Time of the fault, by the clock of the component that reported it."""
    summary: Annotated[PlainText, StringConstraints(max_length=1024)] | None = None
    """Timeline as text for people: 1.3 s: decided 0.10, ordered 0.15 … first step 1.30. Absent during the recovery."""  # noqa: E501
    noticed_milliseconds: int | None = None
    """Milliseconds from the fault until an agent detected the failure of a rank. Absent after the loss of a pod, which the API server reports instead of an agent."""  # noqa: E501
    decided_milliseconds: int = 0
    """Milliseconds from the fault until the operator decided on the next attempt."""
    ordered_milliseconds: int | None = Field(
        # Read the old name for one release, because an earlier operator may have written it.
        default=None,
        validation_alias=AliasChoices("orderedMilliseconds", _OLD_ORDERED_NAME),
    )
    """Milliseconds from the fault until every agent had received the attempt order."""
    torn_down_milliseconds: int | None = None
    """Milliseconds from the fault until no process of the previous attempt was left on any node."""
    forked_milliseconds: int | None = None
    """Milliseconds from the fault until every node had started torchrun."""
    rendezvous_milliseconds: int | None = None
    """Milliseconds from the fault until all nodes had completed the rendezvous and started their ranks."""  # noqa: E501
    process_group_milliseconds: int | None = None
    """Milliseconds from the fault until every rank had joined the process group."""
    first_step_milliseconds: int | None = None
    """Milliseconds from the fault until every rank had completed its first update, which ends the recovery."""  # noqa: E501

    @property
    def complete(self) -> bool:
        """Return whether the recovery has ended."""
        return self.first_step_milliseconds is not None
