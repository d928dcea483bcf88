"""Run every known fault against the product, as `make faults` does.

    python -m tests.fault_player [--part torch|gpus|api|cluster|size|rest|recovery|kills]
        [--seed 0] [--wheels DIR]

The parts run one after another, and each part that needs a cluster starts its own. The exit code
is 1 if one part fails.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness import ending

PYTEST = (
    "-m", "pytest", "-p", "tests.fault_player.report", "-q", "--no-header",
    "-o", "console_output_style=classic", "--tb=short",
)  # fmt: skip
ELASTIC = "tests/cluster/test_elastic.py"
"""Tests of elastic jobs on two real nodes."""
SIZE = (ELASTIC, "tests/four_nodes", "tests/scheduling")
"""Tests of the size and the placement of jobs, which need a cluster."""
REST = ("tests/operator", "tests/release", "tests/trainer", "--ignore=tests/trainer/user_tasks")
"""Folders of the other long tests, which need no cluster. `make test-tasks` runs users' tasks."""


def parts(seed: int, wheels: Path) -> dict[str, list[str]]:
    """Return the arguments of Python for each part."""
    state = ["--seed", str(seed), "--wheels", str(wheels)]
    return {
        "torch": ["-m", "tests.fault_player.newest_torch"],
        "gpus": [*PYTEST, "tests/agent/launcher/driver", "-m", "sweep"],
        "api": [*PYTEST, "tests/api", "-m", "api"],
        "cluster": [*PYTEST, "tests/cluster", f"--ignore={ELASTIC}", "-m", "cluster", "--faults"],
        "size": [*PYTEST, *SIZE, "-m", "cluster or api", "--faults"],
        "rest": [*PYTEST, *REST, "-m", "sweep"],
        "recovery": ["-m", "bench.recovery", *state],
        "kills": ["-m", "tests.fault_player.kills", *state],
    }


def main() -> None:
    """Run the parts, then print the result of each."""
    parser = argparse.ArgumentParser(description="Runs every known fault against the product.")
    known = parts(0, Path())
    parser.add_argument("--part", choices=list(known), action="append", help="run only this part")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED") or "0"))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    options = parser.parse_args()
    environment = os.environ | {"DDP_SEED": str(options.seed), "DDP_WHEELS": str(options.wheels)}
    wanted = options.part or list(known)
    commands = parts(options.seed, options.wheels)
    codes = {name: run(name, commands[name], environment) for name in wanted}
    failed = [name for name, code in codes.items() if code]
    results = ", ".join(f"{name} {'FAILED' if code else 'ok'}" for name, code in codes.items())
    print(f"\nfaults, SEED={options.seed}: {results}")
    sys.exit(1 if failed else 0)


def run(name: str, arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run one part with its output on the terminal, and return its exit code."""
    print(f"\n== {name}", flush=True)
    began = time.monotonic()
    with subprocess.Popen([sys.executable, *arguments], env=environment) as part:
        code = ending.wait_for(part)
    print(f"== {name}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    ending.script(main)
