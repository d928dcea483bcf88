"""Find rank, attempt and time of each line in the log of a worker pod."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")
"""Pattern of the time that the kubelet writes before each line."""
_RANK = re.compile(r"^\[rank (\d{1,9})\] ?")
_ATTEMPT = re.compile(
    r'^ddp-agent: attempt (\d{1,9}): torchrun\b|^\{"time".{0,300}"attempt": (\d+)'
)
"""Pattern of the agent's lines that begin an attempt, as text and as JSON."""
_OF_EVENT = re.compile(
    r'^\{"event": .{0,200}?"attempt": (\d{1,9})|^[0-9T:-]{19}Z \[attempt (\d{1,9})\] '
)
"""Pattern of the attempt in an event of the bundled loop, as JSON and as text."""


@dataclass(frozen=True)
class LogLine:
    """One line of the output of a job."""

    text: str
    """The line without its prefix and its end."""
    pod: str
    rank: int | None = None
    """Global rank, or None for a line of the agent or of torchrun."""
    attempt: int | None = None
    """Number of the attempt, or None for a line before the first one."""
    time: datetime | None = None
    """Time of the line, or None in a local run, whose logs have no times."""


class LogParser:
    """Parser of the log of one pod, whose lines arrive in order."""

    def __init__(self, pod: str, attempt: int | None = None) -> None:
        """Create a parser.

        Args:
            pod: Name of the pod.
            attempt: Number of the attempt at the start of the log, if it is known.
        """
        self._pod, self._attempt = pod, attempt

    def parse(self, raw: bytes) -> LogLine:
        """Return one line of the log."""
        time, rest = split_time(raw)
        text = rest.decode("utf-8", "replace").rstrip("\r\n")
        if (found := _RANK.match(text)) is None:
            if (begin := _ATTEMPT.match(text)) is not None:
                self._attempt = int(begin[1] or begin[2])
            return LogLine(text, self._pod, None, self._attempt, time)
        text = text[found.end() :]
        if (event := _OF_EVENT.match(text)) is not None:
            self._attempt = int(event[1] or event[2])
        return LogLine(text, self._pod, int(found[1]), self._attempt, time)


def split_time(raw: bytes) -> tuple[datetime | None, bytes]:
    """Return the time that the kubelet wrote before a line, and the line."""
    found = _STAMP.match(raw)
    if found is None:
        return None, raw
    fraction = (found[2] or b".0")[:7].decode()
    zone = "+00:00" if found[3] == b"Z" else found[3].decode()
    try:
        time = datetime.fromisoformat(f"{found[1].decode()}{fraction}{zone}").astimezone(UTC)
    except ValueError:
        return None, raw
    return time, raw[found.end() :]


@dataclass(frozen=True)
class Wanted:
    """The lines that a user wants to see."""

    ranks: frozenset[int] = frozenset()
    """Ranks, or none for all ranks and the agents."""
    attempt: int | None = None
    since: datetime | None = None

    def takes(self, line: LogLine) -> bool:
        """Return whether the user wants to see a line."""
        if self.ranks and line.rank not in self.ranks:
            return False
        if self.attempt is not None and line.attempt != self.attempt:
            return False
        return self.since is None or line.time is None or line.time >= self.since


_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


def in_order(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return lines in the order of their times, or of their attempts if they have no times.

    The order of lines with equal times does not change.
    """
    return sorted(lines, key=lambda line: (line.time or _FIRST, line.attempt or 0))


def with_copies(lines: list[LogLine], copies: Iterable[LogLine]) -> list[LogLine]:
    """Return lines with those of other attempts or pods that have no times.

    The attempts order the lines, and the times those of one attempt.
    """
    both = [*copies, *lines]
    return sorted(both, key=lambda line: (line.attempt or 0, line.time or _FIRST))


def wanted_lines(lines: Iterable[LogLine], wanted: Wanted) -> Iterator[LogLine]:
    """Yield the lines that a user wants to see."""
    return (line for line in lines if wanted.takes(line))
