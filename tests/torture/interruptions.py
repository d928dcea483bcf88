"""Kill the process at each file operation, lose power there, or let the operation fail."""

import errno
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count

from tests.torture import operations
from tests.torture.lab import Bad, Case, Lab, orderly
from tests.torture.operations import KILL, Decide, Operation
from tests.torture.writes import GANGS, ROWS, Row

ERRORS = ("EIO", "ESTALE", "ENOSPC", "EROFS")
_LENGTHS = (("once", 1), ("in a burst", 6), ("from then on", 10**9))
"""Numbers of operations that fail. A burst is longer than the tries of one access."""


def kills(lab: Lab, rows: Iterable[Row] = ROWS, fault: str = "killed") -> Iterator[Case]:
    """Yield a case for each point at which a process can be killed."""
    for row in rows:
        for operation, how in operations.each(row.recorded(lab, reads=False)):
            yield Case(fault, f"{row.name}: {how} at {operation}",
                       partial(_kill, lab, row, operation, how))  # fmt: skip


def gangs(lab: Lab) -> Iterator[Case]:
    """Yield kills and errors of one of several ranks, of which each writes or reads a part.

    Each kill is played, and each third error, because a case of two ranks takes seconds.
    """
    for row in GANGS:
        yield from kills(lab, [row], "one of two ranks killed")
        for operation in row.recorded(lab, reads=False)[::3]:
            decide = partial(_fails, errno.EIO, operation.number, operation.number + 1)
            yield Case("EIO on one of two ranks", f"{row.name}: EIO at {operation}",
                       partial(_fail, lab, row, decide, reads=False))  # fmt: skip


def power_losses(lab: Lab) -> Iterator[Case]:
    """Yield a case for each operation before which the machine can lose power."""
    for row in (row for row in ROWS if row.power):
        for operation in row.recorded(lab, reads=False):
            if operation.changes:
                yield Case("power lost", f"{row.name}: power lost at {operation}",
                           partial(_kill, lab, row, operation, KILL, power=True))  # fmt: skip


def failures(lab: Lab) -> Iterator[Case]:
    """Yield cases in which operations fail: one alone, a burst, and all from one on."""
    turn = count()
    for row in ROWS:
        for operation in row.recorded(lab):
            for code in ERRORS if operation.changes else ("EIO",):
                number = getattr(errno, code)
                name, last = _LENGTHS[next(turn) % len(_LENGTHS)]
                decide = partial(_fails, number, operation.number, operation.number + last)
                yield Case(code, f"{row.name}: {code} {name} at {operation}",
                           partial(_fail, lab, row, decide))  # fmt: skip


def _kill(lab: Lab, row: Row, at: Operation, how: str, *, power: bool = False) -> str:
    """Kill a process at an operation, and return the verdict on the next start."""
    home = row.home(lab)
    result = row.play(home, lambda now: how if now.number == at.number else None, reads=False)
    if result.hung:
        raise Bad("the killed process hangs")
    if power:
        result.unsynced.lose(home)
    return lab.resumed(home, row.next, "a kill")


def _fail(lab: Lab, row: Row, decide: Decide, *, reads: bool = True) -> str:
    """Let operations fail, and return the verdict on the next start."""
    home = row.home(lab)
    orderly(row.play(home, decide, reads=reads))
    return lab.resumed(home, row.next, "a failing volume")


def _fails(code: int, first: int, end: int, now: Operation) -> int | None:
    """Return the error number for the operations in a range. A full volume can still be read."""
    if not first <= now.number < end:
        return None
    only_changes = code in {errno.ENOSPC, errno.EROFS}
    return code if now.changes or not only_changes else None
