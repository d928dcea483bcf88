"""Run all tests that CI runs, in two processes at once.

    python -m tests.tools.run_all

A machine has one cluster. Its tests often wait, and the other process runs all other tests
meanwhile. Its output follows at the end.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.harness import ending

CLUSTER = "not sweep and (api or cluster)"
OTHERS = "not sweep and not api and not cluster"


def main() -> None:
    """Run the tests. The exit code is that of pytest, of the first process that failed."""
    pytest = [sys.executable, "-m", "pytest", "-m"]
    # The tests of the cluster take longer, so the others wait for them and not the reverse.
    sys.exit(run_both([*pytest, CLUSTER], ["nice", "-n", "5", *pytest, OTHERS]))


def run_both(first: Sequence[str], second: Sequence[str]) -> int:
    """Run two commands at once, and print the output of the second one after both have ended.

    Returns:
        The exit code of the first one that failed, else 0.

    Raises:
        KeyboardInterrupt: This process was interrupted. Both commands were, too, and have ended.
    """
    with tempfile.TemporaryFile() as log:
        beside = subprocess.Popen(second, stdout=log, stderr=log)
        try:
            codes = [ending.wait_for(subprocess.Popen(first)), ending.wait_for(beside)]
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
