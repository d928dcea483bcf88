"""Run the fast tests of trainer, agent and wire on the newest release of torch, on CPUs.

python -m tests.fault_player.newest_torch [arguments of pytest]
"""

import os
import subprocess
import sys

from tests.harness import ending, newest_torch
from tests.harness.paths import REPOSITORY

TESTS = ("tests/trainer", "tests/agent", "tests/wire", "--ignore=tests/trainer/user_tasks")
FAST = "not sweep and not slow and not api and not cluster"


def main() -> None:
    """Run the tests. The exit code is that of pytest."""
    python = newest_torch.interpreter()
    version = [str(python), "-c", "import torch; print('torch', torch.__version__, flush=True)"]
    subprocess.run(version, check=True)
    paths = (REPOSITORY, REPOSITORY / "operator", REPOSITORY / "trainer")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    pytest = [str(python), "-m", "pytest", "-q", "-m", FAST, *(sys.argv[1:] or TESTS)]
    with subprocess.Popen(pytest, env=environment, cwd=REPOSITORY) as tests:
        code = ending.wait_for(tests)
    sys.exit(code)


if __name__ == "__main__":
    ending.script(main)
