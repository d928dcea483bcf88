"""Let any training script report progress and checkpoints to its job, and stop on request.

    from ddp_trainer import report

    report.progress(step, total=1000, loss=loss)
    report.checkpoint("/checkpoints/run/step-100", step)
    if report.should_stop():
        ...  # Save, then exit.

`keep`, `update` and `kept` keep the state of the script in the memory of its agent when the script
must end.

A script that is the `command` of a DDPJob calls these functions on any of its ranks. The operator
reads the reports of global rank 0. Outside of a job these functions do nothing. The import loads
neither torch nor pydantic, and no function raises an error of the disk.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ddp_trainer.report.checks import whole
from ddp_trainer.report.kept_state import open_keeper, read_kept
from ddp_trainer.report.script_reporter import open_reporter
from ddp_trainer.report.stop_vote import StopVote
from ddp_wire.exit_codes import ExitCode

__all__ = ["STOPPED", "checkpoint", "keep", "kept", "progress", "should_stop", "update"]

STOPPED: int = ExitCode.PREEMPTED
"""Exit code of a script that saved and stopped on request. The restart then uses no budget."""

if TYPE_CHECKING:
    from ddp_trainer.report.state_keeper import StateKeeper

_reporter = functools.cache(open_reporter)
_stop = functools.cache(StopVote)
_keeper: "StateKeeper | None" = None
"""Keeper of the open `keep` context."""


def progress(step: int, total: int | None = None, **metrics: Any) -> None:
    """Report the progress of the training. A call takes about a microsecond.

    Call this function once before the first update, with the step from which the script starts or
    resumes. Then call it after every update or after every few updates. The job shows the newest
    values, at most twice per second.

    Args:
        step: Number of completed updates since the start of the run, over all attempts.
        total: Updates of the whole run, if known. Later calls may omit it.
        metrics: Newest values by name: numbers, or tensors with one element, which are read only
            when the report is written. `loss`, `samples_per_second`, `learning_rate`, `grad_norm`
            and `epoch` have their own fields. Values of earlier calls stay.

    Raises:
        TypeError: If `step` or `total` is not an integer.
        ValueError: If `step` or `total` is negative or above 2**53.
    """
    step = whole("step", step)
    total = None if total is None else whole("total", total)
    reporter = _reporter()
    if reporter is not None:
        reporter.progress(step, total, metrics)


def checkpoint(path: str | os.PathLike[str], step: int) -> None:
    """Report a complete checkpoint, or the checkpoint that the script resumes from.

    Report a resumed checkpoint before the first `progress`, so that the job shows the resumed step.

    Args:
        path: Path of the checkpoint.
        step: Number of completed updates in the checkpoint.

    Raises:
        TypeError: If `step` is not an integer.
        ValueError: If `step` is negative or above 2**53.
    """
    step = whole("step", step)
    reporter = _reporter()
    if reporter is not None:
        reporter.checkpoint(os.fspath(path), step)


def should_stop() -> bool:
    """Return whether the script should save and exit, with `STOPPED` or with 0.

    A stop is requested by SIGTERM, for example when the job is suspended or its node is drained.
    After the first call, SIGTERM no longer ends the process by itself.

    Every rank must call this function equally often, for example after each update. The ranks of
    torch's process group decide together, so all of them get the same answer at the same call. For
    this they exchange their requests about every five seconds. All other calls take a microsecond.
    """
    reporter = _reporter()
    return reporter is not None and _stop().requested()


@contextmanager
def keep(state: Callable[[], Any], step: int) -> Iterator[None]:
    """Return a context that keeps the state in memory if the script must end inside of it.

    The next attempt gets the state by `kept`, without reading a volume. The script must end for
    another attempt if another rank or node is lost, if it raises an exception, or if it exits with
    `STOPPED`. Updates cost nothing. Each change of the state must be inside an `update` context.

    Args:
        state: Function without arguments that returns the state: dictionaries, lists and tuples of
            tensors in host memory and JSON values, at any depth. The state must be equal on all
            ranks, and must not depend on a forward pass that was not finished.
        step: Number of completed updates.

    Raises:
        TypeError: If `step` is not an integer.
        ValueError: If `step` is negative or above 2**53.
        RuntimeError: If another `keep` context is open.
    """
    global _keeper  # noqa: PLW0603 - `update` has no other way to find it
    step = whole("step", step)
    if _keeper is not None:
        raise RuntimeError("report: only one keep context can be open")
    _keeper = open_keeper(state, step)
    try:
        with _keeper.keeping() if _keeper is not None else nullcontext():
            yield
    finally:
        _keeper = None


def update(step: int) -> AbstractContextManager[None]:
    """Return a context in which the script changes the state that `keep` keeps.

    If the script must end inside of it, nothing is kept, because the state is not whole.

    Args:
        step: Number of completed updates after the change.

    Raises:
        TypeError: If `step` is not an integer.
        ValueError: If `step` is negative or above 2**53.
        RuntimeError: If another `update` context is open.
    """
    step = whole("step", step)
    return _keeper.update(step) if _keeper is not None else nullcontext()


def kept() -> tuple[int, Any] | None:
    """Return the newest state that an earlier attempt has kept, with its step, or None.

    All ranks get the same state, with new tensors in host memory. At most two attempts get the same
    one, because it may be the cause of their end. With several ranks every rank must call this once
    per attempt, after `init_process_group`.
    """
    return read_kept()
