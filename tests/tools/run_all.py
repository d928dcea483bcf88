"""Run all tests that CI runs, in two processes at once.

    python -m tests.tools.run_all

A machine has one cluster. Its tests often wait, and the other process runs those of the trainer and
the agent meanwhile, which take most of the time. Its output follows at the end. The first process
runs the rest of the tests after those of the cluster, so that both end at about the same time.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.harness import ending

CLUSTER = "not sweep and (api or cluster)"
OTHERS = "not sweep and not api and not cluster"
LONG = ("tests/trainer", "tests/agent")
"""Folders whose tests run beside those of the cluster."""


def main() -> None:
    """Run the tests. The exit code is that of pytest, of the first process that failed."""
    pytest = [sys.executable, "-m", "pytest", "-m"]
    rest = [*pytest, OTHERS, *(f"--ignore={folder}" for folder in LONG)]
    # Tests of the cluster have limits in seconds, so the others wait for them and not the reverse.
    sys.exit(run_both([[*pytest, CLUSTER], rest], ["nice", "-n", "5", *pytest, OTHERS, *LONG]))


def run_both(first: Sequence[Sequence[str]], second: Sequence[str]) -> int:
    """Run commands one after another, and a second one beside them whose output follows at the end.

    Returns:
        The exit code of the first one that failed, else 0. All of them run in any case.

    Raises:
        KeyboardInterrupt: This process was interrupted. Its commands were, too, and have ended.
    """
    with tempfile.TemporaryFile() as log:
        beside = subprocess.Popen(second, stdout=log, stderr=log)
        try:
            codes = [ending.wait_for(subprocess.Popen(command)) for command in first]
            codes.append(ending.wait_for(beside))
        except KeyboardInterrupt as interruption:
            if isinstance(interruption, ending.Terminated):
                beside.terminate()
            beside.wait()
            raise
        finally:
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout.buffer)
            sys.stdout.flush()
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    ending.script(main)
