"""A profile of some updates of a run that is going on, asked for by a file in its directory.

Only global rank 0 looks for the file, when the ranks meet anyway, and only its own process is
profiled: nothing has to be agreed on. While nothing is recorded, a range costs two comparisons.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_trainer.observe.phases import Phases

REQUEST = "PROFILE.json"
"""In the run's directory: `steps`, how many updates, and `from`, the first; now when not stated."""
FOLDER = "profiles"
SUFFIX = ".pt.trace.json"
"""By which TensorBoard finds it."""
MOST_STEPS = 100
"""A trace of more is too large to be looked at."""

T = TypeVar("T")
_NO_RANGE = nullcontext()


class Trace:
    """Ranges of the loop, and the profile and the times that they appear in."""

    def __init__(self, directory: Path | None = None, phases: Phases | None = None) -> None:
        """Makes no profile without a directory.

        Args:
            directory: The run's own; on global rank 0 only.
            phases: Takes the times of ranges, if they are wanted.
        """
        self._directory = directory
        self._phases = phases
        self._asked: tuple[int, int] | None = None
        self._running: profile | None = None
        self._begun = 0

    def range(self, name: str) -> AbstractContextManager[Any]:
        """A named part of the loop: in the profile, and for NVTX where there is CUDA."""
        phases = self._phases if self._phases and self._phases.measured else None
        if self._running is None and phases is None:
            return _NO_RANGE
        stack = ExitStack()
        if phases:
            stack.enter_context(phases.range(name))
        if self._running:
            stack.enter_context(record_function(name))
            if torch.cuda.is_available():
                stack.enter_context(torch.cuda.nvtx.range(name))
        return stack

    def seconds(self) -> dict[str, float]:
        """Seconds of the ranges of the newest update that was measured, by name."""
        return self._phases.read() if self._phases else {}

    def ranges(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each is there is a range."""
        iterator = iter(items)
        while True:
            with self.range(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def look(self, warn: Callable[[str], None]) -> None:
        """Looks whether a profile is asked for. Called when the ranks meet.

        Args:
            warn: Given a sentence if the request cannot be understood; it is deleted then.
        """
        if self._directory is None or self._running is not None:
            return
        path = self._directory / REQUEST
        try:
            if not path.exists():
                return
            self._asked = _understood(path.read_bytes())
            path.unlink()
        except ValueError as error:
            path.unlink(missing_ok=True)
            warn(f"{path}: {error}")
        except OSError:
            return  # the next meeting looks again

    def updated(self, step: int) -> Path | None:
        """Begins or ends a profile between two updates, and says whether the next one is timed.

        Args:
            step: Updates done.

        Returns:
            The trace, when one is complete.
        """
        if self._phases:
            self._phases.updated(step)
        if self._running is not None:
            _, last = self._asked or (0, 0)
            return self.end(step) if step >= last else None
        if self._asked is not None and step >= self._asked[0]:
            self._begun, count = step, self._asked[1]
            self._asked = (step, step + count)
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()
        return None

    def end(self, step: int) -> Path | None:
        """Ends a profile that is being made, even before its last update.

        Args:
            step: Updates done.
        """
        running, self._running, self._asked = self._running, None, None
        if running is None or self._directory is None:
            return None
        running.stop()
        path = self._directory / FOLDER / f"steps-{self._begun:08d}-{step:08d}{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        pending = path.with_name(f"{path.name}.tmp")
        running.export_chrome_trace(str(pending))
        pending.rename(path)
        return path


def _understood(text: bytes) -> tuple[int, int]:
    """First update, and how many."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("the request for a profile must be a JSON object")  # noqa: TRY004
    first, steps = document.get("from", 0), document.get("steps", 1)
    if not (isinstance(first, int) and isinstance(steps, int) and 1 <= steps <= MOST_STEPS):
        raise ValueError(f'"from" must be a number and "steps" one from 1 to {MOST_STEPS}')
    return first, steps
