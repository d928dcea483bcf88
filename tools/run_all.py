"""Run all tests that CI runs, three commands at a time.

    python -m tools.run_all

The first command runs the tests that need the machine's only cluster, and its output is printed
while it runs. They often wait, so `make check` and all other tests run beside them, one part after
another. The outputs of the parts follow at the end, and then the last lines of each failed part.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence

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
_LAST_LINES = 20
"""Number of lines of a failed command that are repeated at the end."""


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

    The output of one command at a time is printed while it grows. The outputs of the others follow
    at the end, and then the last lines of each failed command.

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


class _Command:
    """A command that has started, and its output in a file."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.output = words, tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)
        self.process = subprocess.Popen(words, stdout=self.output, stderr=self.output)
        self._printed = 0

    def print_new_output(self) -> None:
        """Print what the command has written since the last call."""
        found = self._read(self._printed)
        sys.stdout.buffer.write(found)
        sys.stdout.flush()
        self._printed += len(found)

    def last_lines(self) -> str:
        """Return the last lines of the output. pytest names the failed tests there."""
        text = self._read(0).decode(errors="replace")
        return "\n".join(text.splitlines()[-_LAST_LINES:])

    def _read(self, start: int) -> bytes:
        """Return the output from an offset. Leave the file's position to the command."""
        descriptor = self.output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size - start, start)

    def close(self) -> None:
        """Delete the file of the output."""
        self.output.close()


class _Commands:
    """Commands that wait, and those that have started."""

    def __init__(self, commands: Sequence[Sequence[str]], at_once: int) -> None:
        self._left, self._at_once = deque(commands), at_once
        self._started: list[_Command] = []
        self._followed: _Command | None = None
        """Command whose output is printed while it grows."""

    def run(self) -> int:
        """Run all commands. Return the exit code of a failed one, or 0."""
        failed, running = 0, list[_Command]()
        while self._left or running:
            for ended in [each for each in running if each.process.poll() is not None]:
                running.remove(ended)
                failed = failed or ended.process.returncode
            if self._followed is not None:
                self._followed.print_new_output()
            if self._followed not in running:
                self._followed = None
            while self._left and len(running) < self._at_once:
                running.append(self._start(self._left.popleft()))
            time.sleep(_POLL_SECONDS)
        return failed

    def _start(self, words: Sequence[str]) -> _Command:
        command = _Command(words)
        self._started.append(command)
        self._followed = self._followed or command
        return command

    def wait_for_the_end(self, *, terminate: bool) -> None:
        """Wait until the running commands have ended. The terminal sends Ctrl-C to them, too."""
        for command in self._started:
            if terminate:
                command.process.terminate()
        for command in self._started:
            command.process.wait()

    def print_outputs(self) -> None:
        """Print the outputs that are not printed yet, and repeat why commands failed."""
        for command in self._started:
            command.print_new_output()
        for command in self._started:
            if command.process.poll():
                words = shlex.join(command.words)
                print(f"\nfailed with exit code {command.process.returncode}: {words}")
                print(command.last_lines())
            command.close()
        sys.stdout.flush()


if __name__ == "__main__":
    ending.script(main)
