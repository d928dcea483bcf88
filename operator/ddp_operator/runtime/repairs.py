"""Backoff of repairs of a child that another writer changes after each repair.

The operator restores a Service or NetworkPolicy that was changed. If a policy engine changed the
object back each time, both would write forever. So the pause before the next repair of a child
doubles from 2 s to 5 min. At the third repair in a row, the operator publishes an Event that names
the other writer. If the child stays unchanged for a minute after a pause, the count starts again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ddp_operator.limits import REPAIRS, REPAIRS_QUIET_SECONDS
from ddp_operator.reconcile.plan import Event, EventType

_Child = tuple[str, str]
"""Kind and name of a child."""

_QUIET = timedelta(seconds=REPAIRS_QUIET_SECONDS)
PUBLISHED = 3
"""Number of repairs in a row at which an Event about the other writer is published."""


@dataclass
class _Repaired:
    count: int
    last: datetime

    @property
    def pause(self) -> timedelta:
        return timedelta(seconds=REPAIRS.after(self.count))


class Repairs:
    """Record of this process's repairs of one job's children."""

    __slots__ = ("_clock", "_of")

    def __init__(self, clock: Callable[[], datetime]) -> None:
        """Create a record without repairs. `clock` returns the time."""
        self._clock = clock
        self._of: dict[_Child, _Repaired] = {}

    def is_held(self, kind: str, name: str) -> bool:
        """Return whether the next repair of a child must still wait."""
        known = self._of.get((kind, name))
        # abs() ends the pause after the clock was set back.
        return known is not None and abs(self._clock() - known.last) < known.pause

    def record(self, kind: str, name: str, writer: str) -> Event | None:
        """Record a repair. Return an Event about the other writer, at most once per child."""
        now = self._clock()
        known = self._of.get((kind, name))
        if known is None or abs(now - known.last) > known.pause + _QUIET:
            known = self._of[kind, name] = _Repaired(0, now)
        known.count, known.last = known.count + 1, now
        if known.count != PUBLISHED:
            return None
        shown = kind.partition(".")[0]
        text = (
            f"{writer} changes the {shown} {name} again each time the operator restores it; the"
            f" operator continues to restore it, later once per {REPAIRS.longest / 60:.0f} min"
        )
        return Event(EventType.WARNING, "ChildOverwritten", text)
