"""Print the state of a local run: one live line on a terminal, plain lines elsewhere."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment, Segments
from rich.table import Column
from rich.text import Text

from ddp_operator.api.goodput import Bucket
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile.plan import Event, EventType
from ddp_wire.durations import duration_text

_LEAST_BAR = 5
"""Minimum width of the progress bar, which fills the rest of the line."""
_WIDE = 120
"""Minimum columns of a terminal for the throughput."""
_INDENT = 2
"""Number of spaces before each fact in the summary of a run."""
_SMALLEST_SHARE = 0.001
"""Minimum share of the wall-clock time for which the goodput line names a bucket."""


class View:
    """Printer of the status and the Events of one job."""

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console = name, console
        self._last = ""
        self._live: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(None, table_column=Column(ratio=1, min_width=_LEAST_BAR)),
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[line]}", table_column=Column(no_wrap=True)),
                console=console,
                expand=True,
            )
            self._task = self._live.add_task(name, total=None, line="")
            self._live.start()

    def close(self) -> None:
        """Remove the live line from the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print_line(self, text: str, style: str = "") -> None:
        """Print one line with the current time before it."""
        clock = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        self._console.print(f"{clock} {escape(text)}", style=style, highlight=False, soft_wrap=True)

    def output(self, text: str) -> None:
        """Print whole lines from the ranks without change. Safe to call from any thread."""
        encoding = self._console.encoding
        printable = text.encode(encoding, "replace").decode(encoding)
        self._console.print(Segments([Segment(printable)]), soft_wrap=True)

    def event(self, event: Event) -> None:
        """Print an Event as one line."""
        style = "yellow" if event.type is EventType.WARNING else ""
        self.print_line(f"{event.reason}: {event.message}", style)

    def status(self, status: DDPJobStatus) -> None:
        """Show the status line if it changed."""
        line = status_line(status)
        if line == self._last or not status.conditions:
            return
        self._last = line
        if self._live is None or self._task is None:
            self.print_line(line)
            return
        progress = status.progress
        done = progress.step if progress else 0
        total = progress.total_steps if progress else None
        # The line must fit 80 columns, so the test metrics are only in the summary.
        short = live_line(status, wide=self._console.width >= _WIDE)
        self._live.update(self._task, completed=done, total=total, line=escape(short))


def status_line(status: DDPJobStatus) -> str:
    """Return the columns of `kubectl get ddpjobs` as one line."""
    progress = status.progress
    metrics = (progress.metrics or {}).items() if progress is not None else []
    parts = [*_state(status), *_rate(status), *(f"test {name} {value}" for name, value in metrics)]
    return "  ".join(parts)


def live_line(status: DDPJobStatus, *, wide: bool) -> str:
    """Return the text beside a terminal's progress bar, including the estimated remaining time."""
    parts = [*_state(status), *(_rate(status) if wide else [])]
    progress = status.progress
    if progress is not None and progress.eta_seconds and status.completion_time is None:
        parts.append(f"{duration_text(progress.eta_seconds)} left")
    return "  ".join(parts)


def _state(status: DDPJobStatus) -> list[str]:
    summary, progress = status.condition(ConditionType.SUCCEEDED), status.progress
    parts = [summary.reason if summary else "Pending"]
    if progress is not None:
        parts.append(f"step {progress.summary}")
        if progress.loss is not None:
            parts.append(f"loss {progress.loss}")
    elif status.ready is not None and status.completion_time is None:
        parts.append(f"{status.ready} nodes ready")
    return parts


def _rate(status: DDPJobStatus) -> list[str]:
    rate = status.progress.samples_per_second if status.progress is not None else None
    return [] if rate is None else [f"{rate} samples/s"]


def summary_lines(status: DDPJobStatus, logs: Path) -> list[str]:
    """Return the summary of a finished run, with one fact per line."""
    progress, lines = status.progress, []
    if progress is not None:
        lines += [f"test {name}: {value}" for name, value in (progress.metrics or {}).items()]
        lines.append(f"steps: {progress.step}")
        if progress.samples_per_second is not None:
            lines.append(f"samples/s: {progress.samples_per_second}")
    lines.append(f"attempts: {status.attempt}")
    if status.resumed_from_step is not None:
        complete = progress is not None and progress.total_steps == status.resumed_from_step
        note = " (training was already complete)" if complete else ""
        lines.append(f"resumed from step: {status.resumed_from_step}{note}")
    goodput = goodput_line(status)
    if goodput is not None:
        lines.append(goodput)
    if status.last_checkpoint is not None:
        seconds = status.last_checkpoint.interval_seconds
        every = f", one every {duration_text(seconds)}" if seconds else ""
        lines.append(f"checkpoint: {_short(status.last_checkpoint.path)}{every}")
    lines.append(f"logs: {logs}")
    return lines


def goodput_line(status: DDPJobStatus) -> str | None:
    """Return one line with the share of each goodput bucket in the run's time.

    Training comes first, then the other buckets in descending order. Return None without a ledger.
    """
    goodput = status.goodput
    if goodput is None or goodput.percent is None:
        return None
    total = sum(goodput.milliseconds(bucket) for bucket in Bucket)
    used = [bucket for bucket in Bucket if goodput.milliseconds(bucket) > _SMALLEST_SHARE * total]
    used.sort(key=lambda bucket: (bucket is not Bucket.TRAINING, -goodput.milliseconds(bucket)))
    parts = [
        f"{bucket.replace('_', ' ')} {duration_text(goodput.milliseconds(bucket) / 1000)}"
        for bucket in used
    ]
    return f"goodput: {goodput.percent} ({', '.join(parts)})"


def print_facts(console: Console, lines: Iterable[str]) -> None:
    """Print facts about a run, each on its own line.

    On a terminal, wrap a long line between two words. Never break a path, so that users can copy
    it.
    """
    for line in lines:
        longest = max(map(len, line.split()), default=0)
        if console.is_terminal and longest < console.width - _INDENT:
            console.print(Padding.indent(Text(line), _INDENT), highlight=False)
        else:
            text = " " * _INDENT + line
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(path: str) -> str:
    """Return a path below the current directory as a relative path, or any other unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
