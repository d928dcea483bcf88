"""Run all tests that CI runs, in two processes at once.

    python -m tools.run_all

A machine has one cluster. Its tests often wait, and the other process runs the checks of
`make check` and the rest at the same time, one part after another. Its output follows at the end.
Once the tests of the cluster have passed, the first process takes what is left, so both end at
about the same time on any machine.
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

CLUSTER = ("tests/api", "tests/gangs", "tests/cluster", "tests/four_nodes")
"""Folders that use the cluster of this machine."""
FOLDERS = ("tests/trainer", "tests/agent", "tests/operator")
"""Folders that the processes take one by one, the longest first. The rest is one more part."""
_POLL_SECONDS = 0.1

_Running = list[tuple[subprocess.Popen[bytes], IO[bytes] | None]]
"""Running commands with their output, or None for that of this process."""


def main() -> None:
    """Run the tests. The exit code is that of a part that failed."""
    # Tests of the cluster have limits in seconds, so the others wait for them and not the reverse.
    low = ["nice", "-n", "5"]
    others = [[*low, "make", "--no-print-directory", "check"], *([*low, *part] for part in parts())]
    sys.exit(run_both(pytest(*CLUSTER), others))


def pytest(*arguments: str) -> list[str]:
    """Return the command that runs the tests of CI among those that the arguments name."""
    return [sys.executable, "-m", "pytest", "--durations=25", "-m", "not sweep", *arguments]


def parts() -> list[list[str]]:
    """Return the commands that run all tests outside of the cluster's folders."""
    rest = pytest(*(f"--ignore={folder}" for folder in (*CLUSTER, *FOLDERS)))
    return [*(pytest(folder) for folder in FOLDERS), rest]


def run_both(first: Sequence[str], others: Sequence[Sequence[str]]) -> int:
    """Run the first command, and the others one after another beside it and after it.

    Returns:
        The exit code of the first one that failed, else 0. All of them run in any case.

    Raises:
        KeyboardInterrupt: This process was interrupted. Its commands were, too, and have ended.
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
    """Start what is left whenever one command has ended, with the same output."""
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
