"""Several writers at once: an attempt that a newer one has replaced, twins, and two ranks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture import operations
from tests.torture.attempts import RECORDS, Attempt
from tests.torture.lab import REFUSED, Bad, Case, Lab, orderly
from tests.torture.operations import Operation
from tests.torture.writes import ROWS, Row

_SAVE, _KEEP, _KEEP_ALONE = ROWS[:3]
OTHERS = {
    "a newer attempt": Attempt(3, memory=False, fail_after=5),
    "a newer attempt that only starts": Attempt(3, memory=False, fail_after=0),
    "a twin": Attempt(2, memory=False, fail_after=5),
    "another job": Attempt(1, memory=False, fail_after=5, job="other"),
}


def writers(lab: Lab) -> Iterator[Case]:
    """Yield a whole attempt of another writer before each change that an attempt makes."""
    for name, other in OTHERS.items():
        for operation in _changes(lab, _SAVE):
            yield Case("stale and twin writers", f"{name} at {operation}",
                       partial(_race, lab, other, operation))  # fmt: skip


def ranks(lab: Lab) -> Iterator[Case]:
    """Yield a second rank that writes the same record, from each change of the first one on."""
    for row in (_KEEP, _KEEP_ALONE):
        for operation in _changes(lab, row):
            if operation.path.startswith(RECORDS) and "attempt-2" in operation.path:
                for killed in (False, True):
                    how = "and the first is killed" if killed else "and both end"
                    yield Case("two ranks of a node", f"{row.name}: a second rank at {operation},"
                               f" {how}", partial(_both, lab, row, operation, killed))  # fmt: skip


def _changes(lab: Lab, row: Row) -> list[Operation]:
    return [operation for operation in row.recorded(lab, reads=False) if operation.changes]


def _race(lab: Lab, other: Attempt, at: Operation) -> str:
    """Run another attempt as a whole while the first one is stopped at an operation."""
    home = _SAVE.home(lab)

    def decide(now: Operation) -> None:
        if now.number == at.number:
            result = operations.run(lambda: other.train(home), home)
            orderly(result)

    orderly(_SAVE.play(home, decide, reads=False))
    verdict = lab.start(home, Attempt(4, memory=False))
    lab.clean(home)
    if verdict == REFUSED:
        raise Bad("the next start refuses what two writers have left")
    return verdict


def _both(lab: Lab, row: Row, at: Operation, killed: bool) -> str:
    """Let a second rank write the record while the first one is stopped, or after its death."""
    home, apart = row.home(lab), row.home(lab)
    second: list[operations.Running] = []

    def decide(now: Operation) -> str | None:
        if now.number != at.number:
            return None
        act = partial(row.act.survive, apart, home / RECORDS)
        second.append(operations.spawn(act, apart))
        return operations.KILL if killed else None

    result = row.play(home, decide, reads=False)
    other = second[0].wait()
    if not killed:
        orderly(result)
    orderly(other)
    verdict = lab.start(home, row.next)
    if not any(Path(home / RECORDS).glob("step-00000011.attempt-2")):
        raise Bad("neither rank has written the record")
    for folder in (home, apart):
        lab.clean(folder)
    if verdict == REFUSED:
        raise Bad("the next start refuses what two ranks have left")
    return verdict
