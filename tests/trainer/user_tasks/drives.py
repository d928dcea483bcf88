"""Run the tasks through the trainer's commands, and collect the results."""

import json
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ddp_trainer.commands.main import main
from ddp_trainer.run.run import Run
from ddp_trainer.tools.verify.comparison import largest_difference
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.user_tasks.table import TASKS, Strategy, UserTask, sample

TOLERANCE = 1e-6
UPDATES = 9
"""Updates of a run: two epochs of four, and the first update of a third."""
SAVED = 5
"""Update after which a run saves: the first of the second epoch."""
RUN = ("--global_batch=12", f"--max_steps={UPDATES}", f"--checkpoint.every_steps={SAVED}")
WAIT = 240
"""Seconds for a run. The first compilation of a model takes minutes on a busy machine."""
SEED = int(os.environ.get("DDP_SEED") or "0")


@dataclass(frozen=True, slots=True)
class Variant:
    """Strategy and other options of a run, besides its task."""

    strategy: Strategy
    ema: bool

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of a run."""
        average = ("--ema.decay=0.9",) if self.ema else ()
        return (f"--parallel.strategy={self.strategy}", *average)

    def __str__(self) -> str:
        return f"{self.strategy}-{'ema' if self.ema else 'plain'}"


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one test run of a task."""

    task: str
    drive: str
    difference: float | None = None
    """Largest difference of a number from that of the compared run; None if nothing is compared."""


FIGURES: list[Figure] = []
"""Results of all test runs of this process, for the summary."""


def cases(drive: int, *variants: object) -> list[Any]:
    """Return the parameters of a test: each task, with each variant if there are any.

    Parameters that only `make test-tasks` runs are marked. `make test` runs a third of the tasks,
    each with one variant.

    Args:
        drive: Number of the test, which selects the third.
        variants: Variants of the runs.
    """
    found = []
    for place, task in enumerate(TASKS):
        chosen = (place + place // 3) % len(variants) if variants else 0
        for number, variant in enumerate(variants or [None]):
            quick = task in sample(drive) and number == chosen
            marks = [] if quick else [pytest.mark.sweep]
            if variants:
                name = f"{task.name}-{variant}"
                found.append(pytest.param(task, variant, marks=marks, id=name))
            else:
                found.append(pytest.param(task, marks=marks, id=task.name))
    return found


def command(launcher: Launcher, name: str, task: UserTask, *settings: str) -> Gang:
    """Run a command of the trainer in one process."""
    arguments = [name, f"--task={task.path}", *task.settings, *settings]
    return launcher.call("rank_processes:run_command", arguments, world=None)


@dataclass(frozen=True, slots=True)
class Runs:
    """Object that starts runs of one task with the same settings."""

    launcher: Launcher
    task: UserTask
    settings: Sequence[str]
    home: Path
    """Folder for the checkpoints of all runs."""

    def train(self, name: str, world: int) -> Gang:
        """Start a run, or continue it, with its checkpoints in a folder of this name."""
        return self.launcher.train(*self._arguments(name), world=world)

    def train_and_kill(self, name: str, world: int) -> None:
        """Train, and end one rank with SIGKILL within the epoch of the checkpoint.

        The seed selects the rank and the update.
        """
        draw = random.Random(f"{SEED} {self.task.name} {' '.join(self.settings)}")
        rank, step = draw.randrange(world), draw.choice((SAVED + 1, SAVED + 2))
        argument = {"arguments": ["train", *self._arguments(name)], "rank": rank, "step": step}
        gang = self.launcher.call("user_tasks.drives:killed", argument, world=world)
        codes = gang.wait(WAIT)
        assert codes[rank] == -signal.SIGKILL, (codes, gang.err(rank))
        assert all(codes), "a rank without its peer must not end well"
        assert newest(self.home / name).name.startswith(f"step-{SAVED:08}")

    def _arguments(self, name: str) -> list[str]:
        folder = f"--checkpoint.directory={self.home / name}"
        return [f"--task={self.task.path}", *RUN, folder, *self.task.settings, *self.settings]


def killed(argument: dict[str, object]) -> int:
    """Run `train`. One rank kills itself right after an update, in place of a lost node."""
    advance = Run.advance

    def advance_and_die(self: Run, samples: int) -> None:
        advance(self, samples)
        if (self.ranks.rank, self.position.step) == (argument["rank"], argument["step"]):
            os.kill(os.getpid(), signal.SIGKILL)

    Run.advance = advance_and_die  # type: ignore[method-assign]
    arguments = argument["arguments"]
    assert isinstance(arguments, list)
    return main(arguments)


def finish(gang: Gang, resumed: bool = False) -> Gang:
    """Wait for a run that must succeed, and check at which step it began."""
    codes = gang.wait(WAIT)
    assert not any(codes), f"{codes}\n{gang.err(0)}\n{gang.err(len(codes) - 1)}"
    assert [event["step"] for event in gang.events("resume")] == [SAVED] * resumed
    return gang


def newest(folder: Path) -> Path:
    """Return the newest checkpoint of a run."""
    return max(folder.glob("step-*"))


def tensor_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all tensors of the newest checkpoint, by file name."""
    return {path.name: path.read_bytes() for path in newest(folder).glob("*.safetensors")}


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of a weight, buffer or average of two runs at their end."""
    names = ["model.safetensors", *(["ema.safetensors"] if has_average(one) else [])]
    return max(
        largest_difference(load_file(newest(one) / name), load_file(newest(other) / name))
        for name in names
    )


def has_average(folder: Path) -> bool:
    """Return whether the newest checkpoint of a run has a moving average."""
    return (newest(folder) / "ema.safetensors").is_file()


def metrics(gang: Gang) -> str:
    """Return the metrics at the end of a run, with all digits."""
    (summary,) = gang.events("summary")
    return json.dumps(summary["metrics"])
