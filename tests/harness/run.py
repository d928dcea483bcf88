"""Run commands and wait for conditions, both with deadlines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.errors import HarnessError

_TAIL_LINES = 15


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def command(
    argv: Sequence[str | Path],
    what: str,
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = 600,
) -> str:
    """Run a command and return its standard output.

    Args:
        argv: The command and its arguments, without a shell.
        what: The purpose of the command, as the subject of the error message.
        stdin: Text for its standard input.
        env: Whole environment of the command. None for the caller's environment.
        cwd: Working directory of the command.
        timeout_s: Seconds after which the command is killed.

    Raises:
        HarnessError: The command is missing, failed or ran too long. The text ends with its output.
    """
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            input=stdin,
            env=_with_system_folders(os.environ if env is None else env),
            cwd=cwd,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise HarnessError(f"{what} failed: {argv[0]} is not installed.") from error
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{what} took longer than {timeout_s:.0f} s.") from error
    if done.returncode != 0:
        output = tail(done.stderr or done.stdout)
        raise HarnessError(f"{what} failed with exit code {done.returncode}:\n{output}")
    return done.stdout


def installed(name: str) -> bool:
    """Return whether a command exists, also in the system's folders."""
    return shutil.which(name, path=_with_system_folders(os.environ)["PATH"]) is not None


def poll(ready: Callable[[], bool], *, deadline_s: float, interval_s: float = 0.05) -> bool:
    """Check a condition until it holds or the deadline has passed; return whether it held.

    Args:
        ready: The condition.
        deadline_s: Maximum seconds of checking.
        interval_s: Seconds between two checks.
    """
    end = time.monotonic() + deadline_s
    while not ready():
        if time.monotonic() >= end:
            return False
        time.sleep(interval_s)
    return True


class Figures:
    """Seconds of every phase, printed as each one ends."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._quiet = quiet

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as the phase of this name, and print its seconds."""
        start = time.monotonic()
        yield
        self.note(name, time.monotonic() - start)

    def note(self, name: str, seconds: float, comment: str = "") -> None:
        """Record and print the seconds of a phase that was timed elsewhere."""
        self.seconds[name] = seconds
        if not self._quiet:
            print(f"{name:<28} {seconds:7.2f} s  {comment}".rstrip(), flush=True)


def _with_system_folders(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose PATH includes the system's folders; some shells lack them."""
    return {**env, "PATH": f"{env.get('PATH', '')}:/usr/sbin:/sbin"}


def print_line(text: str) -> None:
    """Print a line of progress and flush it."""
    print(text, file=sys.stdout, flush=True)
