"""Run all tests that CI runs, in two processes at once.

    python -m tools.run_all

The first process runs the tests that need the machine's only cluster. They often wait, so the
second process runs `make check` and all other tests meanwhile, one part after another, and prints
its output at the end. When the cluster tests have passed, the first process helps with the
remaining parts, so both end at about the same time.
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
FOLDERS = ("tests/trainer", "tests/agent", "tests/operator")
"""Test folders that the processes run one by one, the longest first. All other tests are one more
part."""
_POLL_SECONDS = 0.1

_Running = list[tuple[subprocess.Popen[bytes], IO[bytes] | None]]
"""Running commands, each with its output, or with None if it prints directly."""


def main() -> None:
    """Run the tests. Return the exit code of a failed part, or 0."""
    # Tests of the cluster have limits in seconds, so the others wait for them and not the reverse.
    low = ["nice", "-n", "5"]
    others = [[*low, "make", "--no-print-directory", "check"], *([*low, *part] for part in parts())]
    sys.exit(run_both(pytest(*CLUSTER), others))


def pytest(*arguments: str) -> list[str]:
    """Return the command that runs CI's tests among those that the arguments name."""
    return [sys.executable, "-m", "pytest", "--durations=25", "-m", "not sweep", *arguments]


def parts() -> list[list[str]]:
    """Return the commands that run all tests except those in the cluster's folders."""
    rest = pytest(*(f"--ignore={folder}" for folder in (*CLUSTER, *FOLDERS)))
    return [*(pytest(folder) for folder in FOLDERS), rest]


def run_both(first: Sequence[str], others: Sequence[Sequence[str]]) -> int:
    """Run the first command. Meanwhile and afterwards, run all other commands one by one.

    Returns:
        The exit code of the first failed command, or 0. A failure stops no other command.

    Raises:
        KeyboardInterrupt: This process and its commands were interrupted, and the commands have
            ended.
    """
    with tempfile.TemporaryFile() as log:
        left, running = deque(others), _Running([(subprocess.Popen(first), None)])
        running.append((subprocess.Popen(left.popleft(), stdout=log, stderr=log), log))
        try:
            return _run(running, left)
        except KeyboardInterrupt as interruption:
            for child, _ in running:
                if isinstance(interruption, ending.Terminated):
                    child.terminate()  # The terminal sends Ctrl-C to the children too.
            for child, _ in running:
                child.wait()
            raise
        finally:
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout.buffer)
            sys.stdout.flush()


def _run(running: _Running, left: deque[Sequence[str]]) -> int:
    """Start the next command whenever a command has ended, with the same kind of output."""
    failed = 0
    while running:
        time.sleep(_POLL_SECONDS)
        for ended in [each for each in running if each[0].poll() is not None]:
            running.remove(ended)
            failed = failed or ended[0].returncode
            if left:
                output = ended[1]
                child = subprocess.Popen(left.popleft(), stdout=output, stderr=output)
                running.append((child, output))
    return failed


if __name__ == "__main__":
    ending.script(main)
