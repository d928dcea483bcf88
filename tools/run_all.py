"""Run all tests that CI runs, three commands at a time.

    python -m tools.run_all

The first command runs the tests that need the machine's only cluster, and prints directly. They
often wait, so `make check` and all other tests run beside them, one part after another. The outputs
of the parts follow at the end.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import IO

from tests.harness import ending

CLUSTER = ("tests/api", "tests/scheduling", "tests/cluster", "tests/four_nodes")
"""Test folders that use the cluster of this machine."""
PARTS = (
    ("tests/operator/cli",),
    ("tests/trainer/run",),
    ("tests/trainer/checkpoint",),
    ("tests/trainer", "--ignore=tests/trainer/run", "--ignore=tests/trainer/checkpoint"),
    ("tests/agent",),
    ("tests/operator", "--ignore=tests/operator/cli"),
)
"""Arguments of pytest for each part, the longest first. All other tests are one more part."""
AT_ONCE = 3
"""Number of commands that run at a time. Most tests wait for processes more than they compute."""
_POLL_SECONDS = 0.1


def main() -> None:
    """Run the tests. Exit with the code of a failed part, or 0."""
    # Tests of the cluster have limits in seconds, so the others wait for them and not the reverse.
    low = ["nice", "-n", "5"]
    others = [[*low, "make", "--no-print-directory", "check"], *([*low, *part] for part in parts())]
    sys.exit(run_beside(pytest(*CLUSTER), others, AT_ONCE))


def pytest(*arguments: str) -> list[str]:
    """Return the command that runs CI's tests among those that the arguments name."""
    return [sys.executable, "-m", "pytest", "--durations=25", "-m", "not sweep", *arguments]


def parts() -> list[list[str]]:
    """Return the commands that run all tests except those in the cluster's folders."""
    folders = {"/".join(part[0].split("/")[:2]) for part in PARTS}
    rest = pytest(*(f"--ignore={folder}" for folder in (*CLUSTER, *sorted(folders))))
    return [rest, *(pytest(*part) for part in PARTS)]


def run_beside(first: Sequence[str], others: Sequence[Sequence[str]], at_once: int) -> int:
    """Run the first command, and beside it all others, a number of commands at a time.

    One command at a time prints directly. The outputs of the others follow at the end.

    Returns:
        The exit code of a failed command, or 0. A failure stops no other command.

    Raises:
        KeyboardInterrupt: This process and its commands were interrupted, and the commands have
            ended.
    """
    commands = _Commands([first, *others], at_once)
    try:
        return commands.run()
    except KeyboardInterrupt as interruption:
        commands.wait_for_the_end(terminate=isinstance(interruption, ending.Terminated))
        raise
    finally:
        commands.print_outputs()


class _Commands:
    """Commands that wait, and those that run."""

    def __init__(self, commands: Sequence[Sequence[str]], at_once: int) -> None:
        self._left, self._at_once = deque(commands), at_once
        self._running: dict[subprocess.Popen[bytes], IO[bytes] | None] = {}
        """Running commands, each with its output, or with None if it prints directly."""
        self._outputs: list[IO[bytes]] = []

    def run(self) -> int:
        """Run all commands. Return the exit code of a failed one, or 0."""
        failed = 0
        while self._left or self._running:
            for ended in [each for each in self._running if each.poll() is not None]:
                del self._running[ended]
                failed = failed or ended.returncode
            while self._left and len(self._running) < self._at_once:
                self._start(self._left.popleft())
            time.sleep(_POLL_SECONDS)
        return failed

    def _start(self, command: Sequence[str]) -> None:
        output = None
        if None in self._running.values():
            output = tempfile.TemporaryFile()  # noqa: SIM115 (closed after it is printed)
            self._outputs.append(output)
        child = subprocess.Popen(command, stdout=output, stderr=output)
        self._running[child] = output

    def wait_for_the_end(self, *, terminate: bool) -> None:
        """Wait until the running commands have ended. The terminal sends Ctrl-C to them, too."""
        for child in self._running:
            if terminate:
                child.terminate()
        for child in self._running:
            child.wait()

    def print_outputs(self) -> None:
        """Print the outputs that no command has printed."""
        for output in self._outputs:
            with output:
                output.seek(0)
                shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()


if __name__ == "__main__":
    ending.script(main)
