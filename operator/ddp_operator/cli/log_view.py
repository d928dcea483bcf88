"""Format lines of the output of ranks, coloured by rank."""

import re

import click

from ddp_operator.client.log_lines import LogLine

_COLOURS = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_red",
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)")
"""Pattern of the control characters of C0 and C1 that may change the terminal, except colours."""


class LogView:
    """Formatter of the lines of one job. `click.echo` removes the colours outside a terminal."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps

    def format(self, line: LogLine) -> str:
        """Return a line with its rank, or with its pod for a line of the agent."""
        text = _CONTROLS.sub("", line.text)
        stamp = ""
        if self._timestamps and line.time is not None:
            stamp = f"{line.time.isoformat(timespec='milliseconds')} "
        if line.rank is None:
            return click.style(f"{stamp}[{line.pod}] {text}", dim=True)
        colour = _COLOURS[line.rank % len(_COLOURS)]
        return f"{stamp}{click.style(f'[rank {line.rank}]', fg=colour)} {text}"
