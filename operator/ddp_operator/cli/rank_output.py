"""Show the output of a local run's ranks live, from the logs of its pods.

The log of a pod contains the lines of all its ranks in all attempts. torchrun writes the prefix
`[rank N] ` before each line. If a rank writes a line in parts, torchrun may prefix each part.
"""

import codecs
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

LONGEST_LINE = 64 << 10
"""Maximum number of characters of a line. The rest of a longer line is not shown."""
PAUSE_SECONDS = 1.0
"""Seconds after which a line is shown although its end has not been written yet."""
_POLL_SECONDS = 0.1
_CHUNK = 64 << 10
_LONGEST_PREFIX = 64
_STAMP = r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} "
_TORCHRUN = rf"(?<!\]:)\[{_STAMP}\w{{1,24}}\.cpp:|(?<!\]:){_STAMP}\d{{1,7}} torch/"
"""Pattern of the start of torchrun's own messages, in C++ or Python. Messages of a rank start with
`[rank0]:`."""
_PREFIX = re.compile(rf"\[rank (\d{{1,9}})\] |ddp-agent: attempt \d{{1,9}}: |{_TORCHRUN}")
"""Pattern of the prefix that names the writer of a part: a rank, the agent or torchrun."""

RankLine = tuple[int, str]
"""Number of a rank, and one line of its output without the newline."""


class RankLines:
    """Parser that separates the lines of each rank in the log of one pod."""

    def __init__(self, ranks: range) -> None:
        """Create a parser for the log of a pod with these ranks."""
        self._ranks = ranks
        self._held = ""
        """Start of a line that may continue in the next text."""
        self._rank: int | None = None
        """Rank that wrote the present part of a line. None for the agent and for torchrun."""
        self._in_line = False
        """Whether the next text continues a line of the log."""
        self._was_at_end = False
        """Whether the log ended when it was read last, so that a new part may begin there."""
        self._open: dict[int, tuple[str, float]] = {}
        """Line without an end of each rank, and the time of its first part."""
        self._cut: set[int] = set()
        """Ranks whose present line was shown without its end."""

    def feed(self, text: str, *, at_end: bool, now: float) -> list[RankLine]:
        """Return the lines that this text completes, and unfinished lines after some time.

        Args:
            text: Next text of the log.
            at_end: Whether this text reaches the current end of the log.
            now: Time in seconds.
        """
        found: list[RankLine] = []
        *whole, last = (self._held + text).split("\n")
        for line in whole:
            found += self._parse(f"{line}\n", now)
        cut = len(last) if at_end else len(last) - _LONGEST_PREFIX
        if at_end or len(last) > LONGEST_LINE:
            found += self._parse(last[:cut], now)
            last = last[cut:]
        self._held = last
        self._was_at_end = at_end
        late = [rank for rank, (_, since) in self._open.items() if now >= since + PAUSE_SECONDS]
        return found + [self._show(rank) for rank in late]

    def rest(self) -> list[RankLine]:
        """Return all unfinished lines."""
        return [self._show(rank) for rank in list(self._open)]

    def _parse(self, text: str, now: float) -> list[RankLine]:
        found: list[RankLine] = []
        for rank, part in self._parts(text):
            if rank is not None and part:
                found += self._add(rank, part, now)
        if text:
            self._in_line = not text.endswith("\n")
            self._was_at_end = False
        return found

    def _parts(self, text: str) -> Iterator[tuple[int | None, str]]:
        """Split one line of the log into the parts that torchrun prefixed, each with its rank.

        A rank may print the text of a prefix itself, so not every prefix starts a part.
        """
        begin, prefix = 0, _PREFIX.match(text)
        if not self._in_line or (prefix and self._was_at_end and self._known(prefix)):
            known = prefix if prefix and self._known(prefix) else None
            self._rank = _rank_of(known) if known else None
            begin = known.end() if known else 0
        if self._rank is not None:
            for prefix in _PREFIX.finditer(text, begin):
                if prefix.start() == begin > 0 or not self._known(prefix):
                    continue  # A part is never empty.
                # A rank often prints its own prefix, for example after the time.
                if _rank_of(prefix) == self._rank and text[prefix.end() :] != "\n":
                    continue
                yield self._rank, text[begin : prefix.start()]
                self._rank, begin = _rank_of(prefix), prefix.end()
                if self._rank is None:
                    break
        yield self._rank, text[begin:]

    def _known(self, prefix: re.Match[str]) -> bool:
        rank = _rank_of(prefix)
        return rank is None or rank in self._ranks

    def _add(self, rank: int, part: str, now: float) -> list[RankLine]:
        """Add a part to the unfinished line of a rank. Return the lines that can be shown."""
        before, since = self._open.pop(rank, ("", now))
        line, ended = (before + part).removesuffix("\n"), part.endswith("\n")
        found: list[RankLine] = []
        while len(line) > LONGEST_LINE:
            found.append((rank, line[:LONGEST_LINE]))
            line = line[LONGEST_LINE:]
            self._cut.add(rank)
        if not ended:
            self._open[rank] = (line, since)
        elif line or rank not in self._cut:
            found.append((rank, line))
        if ended:
            self._cut.discard(rank)
        return found

    def _show(self, rank: int) -> RankLine:
        line, _ = self._open.pop(rank)
        self._cut.add(rank)
        return rank, line


def _rank_of(prefix: re.Match[str]) -> int | None:
    """Return the rank in a prefix, or None for a prefix of the agent or of torchrun."""
    return int(prefix[1]) if prefix[1] else None


class PodLog:
    """Reader that follows one pod's log, from the current end. The file need not exist yet."""

    def __init__(self, path: Path, ranks: range) -> None:
        """Create a reader for the log of a pod with these ranks."""
        self._path, self._file = path, None if not path.exists() else path.open("rb")
        if self._file is not None:
            self._file.seek(0, 2)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = RankLines(ranks)

    def read(self, now: float) -> tuple[list[RankLine], bool]:
        """Read the next part of the log. Return its lines, and whether they reach the log's end."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._file = self._path.open("rb")
        chunk = self._file.read(_CHUNK) if self._file else b""
        at_end = len(chunk) < _CHUNK
        return self._lines.feed(self._decoder.decode(chunk), at_end=at_end, now=now), at_end

    def close(self) -> list[RankLine]:
        """Close the file. Return all unfinished lines."""
        if self._file is not None:
            self._file.close()
        return self._lines.rest()


class RankOutput:
    """Thread that shows the output of ranks while they run.

    The thread keeps a slow terminal from delaying the operator. It reads no more than it can show,
    so its memory use does not depend on the size of the output.
    """

    def __init__(
        self, logs: Mapping[Path, range], write: Callable[[str], None], *, all_ranks: bool
    ) -> None:
        """Prepare the output of a run before the run starts.

        Args:
            logs: Ranks of each pod, by the path of the pod's log.
            write: Function with which the thread writes whole lines.
            all_ranks: Whether to show all ranks with their numbers, or only rank 0.
        """
        self._logs = [PodLog(path, ranks) for path, ranks in logs.items()]
        self._write, self._all_ranks = write, all_ranks
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread that shows the output."""
        self._thread.start()

    def close(self) -> None:
        """Show everything that the ranks have written until now, and stop the thread."""
        self._closing.set()
        self._thread.join()

    def abandon(self) -> None:
        """Stop the thread without showing the rest of the output."""
        self._abandoned.set()

    def _run(self) -> None:
        while not self._abandoned.is_set():
            last = self._closing.is_set()
            at_ends = [self._show_next(log) for log in self._logs]
            if all(at_ends):
                if last:
                    break
                self._closing.wait(_POLL_SECONDS)
        for log in self._logs:
            self._show(log.close())

    def _show_next(self, log: PodLog) -> bool:
        """Show the next part of a log. Return whether it reaches the end of the log."""
        lines, at_end = log.read(time.monotonic())
        self._show(lines)
        return at_end

    def _show(self, lines: list[RankLine]) -> None:
        if self._all_ranks:
            text = "".join(f"[rank {rank}] {line}\n" for rank, line in lines)
        else:
            text = "".join(f"{line}\n" for rank, line in lines if rank == 0)
        if text and not self._abandoned.is_set():
            self._write(text)
