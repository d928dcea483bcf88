"""Measure the operator at the size of a company, on a real control plane with fake nodes.

python -m tests.benchmarks.scale [--repeats 3] [--pods 1000] [--jobs 1000] [--large 9999]
                                 [--only one|many|large]
"""

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path

from tests.benchmarks.scale.loads import many_jobs, one_job
from tests.benchmarks.scale.stage import Stage
from tests.harness import ending


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure all chosen loads and print their figures."""
    async with Stage.up(folder) as stage:
        if options.only in {None, "one"}:
            for repeat in range(options.repeats):
                _show(await one_job(stage, f"one-{repeat}", options.pods))
        if options.only in {None, "many"}:
            _show(await many_jobs(stage, "many", options.jobs, 4))
        if options.only in {None, "large"}:
            _show(await one_job(stage, "large", options.large))


def _show(figures: object) -> None:
    assert dataclasses.is_dataclass(figures)
    for field in dataclasses.fields(figures):
        value = getattr(figures, field.name)
        print(
            f"  {field.name:20} {value:.3f}"
            if isinstance(value, float)
            else f"  {field.name:20} {value}",
            flush=True,
        )
    print(flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--large", type=int, default=9999)
    parser.add_argument("--only", choices=["one", "many", "large"])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddp-bench-scale-"))
    print(f"logs: {folder}", flush=True)
    asyncio.run(measure(options, folder))


if __name__ == "__main__":
    ending.script(main)
