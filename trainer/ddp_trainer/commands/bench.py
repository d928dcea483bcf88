"""`bench`: measure how the loop scales over ranks, and its overhead over a minimal loop."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_trainer.commands.arguments import add_run_to, check_positive, numbers, task_and_config
from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import check, resolve
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_trainer.tools.scaling.point import ScalingPoint, strong_efficiency, table, weak_efficiency
from ddp_wire.contract import ExitCode

POLL_SECONDS = 0.2


class _RanksFailedError(Exception):
    """Error for a failed torchrun process. The message is the process's standard error."""


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "bench",
        help="measure scaling over ranks and the overhead of the loop",
        description=(
            "Measure weak and strong scaling on this machine, the exposed communication, and the"
            " time per update compared with a minimal loop. Under torchrun, measure only that world"
            " size and print it as JSON. Settings are given as for train."
        ),
    )
    add_run_to(parser)
    parser.add_argument(
        "--ranks", default="1,2", help="world sizes, separated by commas; default: 1,2"
    )
    parser.add_argument(
        "--updates", type=int, default=100, help="timed updates per block; default: 100"
    )
    parser.add_argument(
        "--warmup", type=int, default=20, help="untimed updates before each block; default: 20"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed blocks per loop; default: 3")
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str], stop: StopFlag
) -> ExitCode:
    """Run the command.

    Args:
        options: Parsed options.
        rest: Arguments that the parser does not know, which are settings.
        environ: Environment of the process.
        stop: Flag that signal handlers set.

    Raises:
        InputError: If the options, the task or the settings are wrong.
    """
    check_positive("bench", options, "updates", "warmup", "repeats")
    task, config = task_and_config("bench", options, rest, environ)
    config = _block_config(config, options.warmup + options.updates)
    ranks = Ranks.from_environment(environ)
    if ranks.launched:
        return _measure(task, config, ranks, stop, options)
    _check_task(task, config)
    sizes = sorted({1, *numbers("bench", "ranks", options.ranks)})
    try:
        return _ScalingBenchmark(task, config, sizes, options, stop).run()
    except _RanksFailedError as error:
        print(f"{error}\nbench: the ranks failed; their messages are above", file=sys.stderr)
        return ExitCode.FAILED


def _check_task(task: str, config: RunConfig) -> None:
    """Raise an InputError for wrong task settings before any rank starts."""
    from ddp_trainer.task import load_build  # noqa: PLC0415 - imports torch

    check(load_build(task)[1], config.task, prefix="task.")


def _block_config(config: RunConfig, updates: int) -> RunConfig:
    """Return the settings of a run with the given number of updates and without checkpoints."""
    length = {"max_steps": updates, "max_seconds": None, "epochs": None}
    stated = config.model_dump(mode="json", exclude_unset=True)
    return resolve(stated | length | {"checkpoint": {"directory": None}})


def _measure(
    task: str, config: RunConfig, ranks: Ranks, stop: StopFlag, options: argparse.Namespace
) -> ExitCode:
    """Measure the loop on this rank. Rank 0 prints the measurement as its last line."""
    # Imported here, because they import torch.
    from ddp_trainer.ranks import process_group  # noqa: PLC0415
    from ddp_trainer.run.opening import RunRequest  # noqa: PLC0415
    from ddp_trainer.tools.scaling.measure import measure  # noqa: PLC0415

    request = RunRequest(task, config)
    point = measure(request, ranks, stop, warmup=options.warmup, repeats=options.repeats)
    if ranks.is_first:
        print(point.model_dump_json(), flush=True)
    process_group.leave()
    return ExitCode.OK


class _ScalingBenchmark:
    """Benchmark of all world sizes on this machine.

    Weak scaling keeps the batch per rank constant, and strong scaling keeps the global batch
    constant. At the largest world size both use the configured global batch. Weak scaling rounds it
    down to a multiple of the ranks.
    """

    def __init__(
        self,
        task: str,
        config: RunConfig,
        sizes: list[int],
        options: argparse.Namespace,
        stop: StopFlag,
    ) -> None:
        self._task = task
        self._config = config
        self._sizes = sizes
        self._options = options
        self._stop = stop
        self._points: dict[tuple[int, int], ScalingPoint] = {}

    def run(self) -> ExitCode:
        """Measure all world sizes and print the tables."""
        batch, largest = self._config.global_batch, self._sizes[-1]
        for size in self._sizes:
            self._config.batch_split(size)
        per_rank = batch // largest
        weak = [self._point(size, per_rank * size) for size in self._sizes]
        strong = [self._point(size, batch) for size in self._sizes]
        title = f"ranks (weak scaling, {per_rank} samples per rank)"
        print(table(title, weak, [weak_efficiency(point, weak[0]) for point in weak]))
        title = f"ranks (strong scaling, {batch} samples per update)"
        print()
        print(table(title, strong, [strong_efficiency(point, strong[0]) for point in strong]))
        return ExitCode.OK

    def _point(self, size: int, batch: int) -> ScalingPoint:
        if (size, batch) not in self._points:
            print(f"measuring {size} rank(s) with {batch} samples per update", file=sys.stderr)
            self._points[size, batch] = self._launch(size, batch)
        return self._points[size, batch]

    def _launch(self, size: int, batch: int) -> ScalingPoint:
        config = self._config.model_dump(mode="json", exclude_unset=True) | {"global_batch": batch}
        options = self._options
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={size}", "-m", "ddp_trainer", "bench"]
        command += ["--task", self._task, "--config", json.dumps(config)]
        command += [f"--{n}={getattr(options, n)}" for n in ("updates", "warmup", "repeats")]
        # Each rank has the same number of threads at every world size. Otherwise the benchmark
        # would measure how the threads scale.
        threads = max(1, len(os.sched_getaffinity(0)) // self._sizes[-1])
        environ = {"OMP_NUM_THREADS": str(threads)} | os.environ
        return ScalingPoint.model_validate_json(self._output(command, environ).splitlines()[-1])

    def _output(self, command: list[str], environ: Mapping[str, str]) -> str:
        """Return the output of a command. Terminate the command when this process must stop."""
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while True:
                try:
                    output, errors = process.communicate(timeout=POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if self._stop.requested:
                        process.terminate()
        if process.returncode:
            raise _RanksFailedError(errors)
        return output
