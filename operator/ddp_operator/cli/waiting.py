"""Wait for a job, and print each change of its state."""

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from ddp_operator.api.job import DDPJob
from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.cli.facts import story_lines
from ddp_operator.client.jobs import POLL_SECONDS, Job
from ddp_operator.report.rows import ENDS, message_of, state_of, time_left
from ddp_operator.report.story import tell
from ddp_wire.plain_text import plain_text


def wait_and_show(
    job: Job, states: tuple[str, ...], timeout: float | None, *, quiet: bool = False
) -> int:
    """Wait for the end of a job, or for a state. Return the exit code."""
    last = job.wait(*states, timeout=timeout, on_change=(lambda _: None) if quiet else _show_change)
    state = state_of(last)
    if state in states:
        return CommandCode.OK
    if not quiet and state in ENDS:
        click.echo(plain_text(f"{state}: {message_of(last)}"))
    return CommandCode.OK if state == "Completed" and not states else CommandCode.FAILED


def watch_story(job: Job) -> int:
    """Show the story of a job on a terminal until the job ends. Return the exit code."""
    rows = 0
    while True:
        found = job.read()
        width, height = shutil.get_terminal_size()
        facts = tell(found, datetime.now(UTC), place=job.backend.place)
        shown = screen(story_lines(facts, width), width, height - 1)
        # Go back to the first row, and replace all rows by the new ones.
        up = f"\x1b[{rows}A" if rows else ""
        click.echo(f"{up}\r\x1b[J" + "\n".join(shown))
        rows = sum(rows_of(line, width) for line in shown)
        if state_of(found) in ENDS:
            return CommandCode.OK if state_of(found) == "Completed" else CommandCode.FAILED
        time.sleep(POLL_SECONDS)


def screen(lines: Sequence[str], width: int, height: int) -> list[str]:
    """Return the first lines that together fit a terminal."""
    shown, left = [], height
    for line in lines:
        left -= rows_of(line, width)
        if left < 0:
            break
        shown.append(line)
    return shown


def rows_of(line: str, width: int) -> int:
    """Return the number of rows of a line, which may be longer than the terminal is wide."""
    return max(1, -(-len(click.unstyle(line)) // width))


def _show_change(job: DDPJob) -> None:
    click.echo(change_line(job, datetime.now(UTC)))


def change_line(job: DDPJob, now: datetime) -> str:
    """Return the state of a job as one line."""
    progress, clock = job.status.progress, now.astimezone().strftime("%H:%M:%S")
    parts = [f"{clock} {state_of(job)}"]
    if progress is not None:
        parts.append(f"update {progress.summary}")
        parts += [f"loss {progress.loss}"] if progress.loss is not None else []
    elif job.status.ready is not None:
        parts.append(f"{job.status.ready} nodes ready")
    if left := time_left(job):
        parts.append(f"{left} left")
    return plain_text("  ".join(parts))
