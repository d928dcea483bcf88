"""Define the limits after which a rank counts as hung, by its activity.

Process: agent.
"""

from pydantic import BaseModel, ConfigDict, PositiveInt
from pydantic.alias_generators import to_camel

from ddp_wire.activity import Activity
from ddp_wire.hang_limits import (
    HANG_CHECKPOINT_SECONDS,
    HANG_DATA_SECONDS,
    HANG_EVALUATION_SECONDS,
    HANG_EXIT_SECONDS,
    HANG_HOOK_SECONDS,
    HANG_START_SECONDS,
    HANG_STEP_SECONDS,
)

_P99_FACTOR = 3.0
"""Factor for the limit within an update: a multiple of the 99th percentile of the update time."""


class HangLimits(BaseModel):
    """Seconds without progress after which a rank counts as hung, by activity."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="ignore")

    detect: bool = True
    step_seconds: PositiveInt = HANG_STEP_SECONDS
    start_seconds: PositiveInt = HANG_START_SECONDS
    evaluation_seconds: PositiveInt = HANG_EVALUATION_SECONDS
    checkpoint_seconds: PositiveInt = HANG_CHECKPOINT_SECONDS
    data_seconds: PositiveInt = HANG_DATA_SECONDS
    hook_seconds: PositiveInt = HANG_HOOK_SECONDS
    exit_seconds: PositiveInt = HANG_EXIT_SECONDS

    def of(self, activity: Activity, p99_seconds: float | None) -> float:
        """Return the seconds without progress after which a rank is a suspect.

        Args:
            activity: The activity.
            p99_seconds: 99th percentile of the update time so far. None after too few updates; then
                the limit for a start applies.
        """
        match activity:
            case Activity.STARTING:
                return self.start_seconds
            case Activity.EVALUATION:
                return self.evaluation_seconds
            case Activity.CHECKPOINT | Activity.ENDING:
                return self.checkpoint_seconds
            case _ if p99_seconds is None:
                return max(self.start_seconds, self.step_seconds)
            case _:
                return max(self.step_seconds, _P99_FACTOR * p99_seconds)

    def end(self, activity: Activity, p99_seconds: float | None, *, compiles: bool) -> float:
        """Return the limit after which a rank that others wait for ends the attempt.

        Args:
            activity: The activity of the rank.
            p99_seconds: 99th percentile of the update time so far. None after too few updates.
            compiles: Whether the rank compiles, for example for the first batch of a new shape.
        """
        own = self.of(activity, p99_seconds)
        if compiles:
            return max(own, self.start_seconds)
        match activity:
            case Activity.DATA:
                return max(own, self.data_seconds)
            case Activity.HOOK:
                return max(own, self.hook_seconds)
            case _:
                return own

    @property
    def longest(self) -> int:
        """The longest of all limits, in seconds."""
        others = (
            self.evaluation_seconds,
            self.checkpoint_seconds,
            self.data_seconds,
            self.hook_seconds,
        )
        return max(self.step_seconds, self.start_seconds, *others)
