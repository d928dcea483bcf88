"""Profile a training run on request by a file in the run's directory.

Only global rank 0 polls for the file, at the exchanges between ranks, and profiles only its own
process. So the ranks need not coordinate the profile.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_trainer.observe.phases import PhaseTimer
from ddp_wire.activity import Activity
from ddp_wire.contract import PROFILE_REQUEST, PROFILES
from ddp_wire.files import PlantedFileError, held_path, read_file, remove
from ddp_wire.inspections import MOST_PROFILED_STEPS

SUFFIX = ".pt.trace.json"
"""File name suffix by which TensorBoard finds profiles."""
_LARGEST_REQUEST = 1 << 16

T = TypeVar("T")


class Trace:
    """Recorder of the loop's activities for the profiler, for NVTX and for phase times.

    The loop enters one activity after another. Each activity ends when the next one starts.
    """

    def __init__(
        self,
        directory: Path | None = None,
        phases: PhaseTimer | None = None,
        entered: Sequence[Callable[[Activity], None]] = (),
    ) -> None:
        """Create a recorder without a profile.

        Args:
            directory: The run's directory on global rank 0, else None. None disables profiles.
            phases: Timer for the durations of activities, if wanted.
            entered: Function that is called with each activity when it starts.
        """
        self._entered = entered
        self._directory = directory
        self._phases = phases
        self._requested: tuple[int, int] | None = None
        self._profile: profile | None = None
        self._ranges = ExitStack()
        """Ranges of the profile that are open."""
        self._first_step = 0

    def enter(self, activity: Activity) -> None:
        """Start an activity, and end the previous activity."""
        for call in self._entered:
            call(activity)
        if self._phases is not None:
            self._phases.enter(activity.name.lower())
        if self._profile is not None:
            self._open_ranges(activity.name.lower())

    def _open_ranges(self, name: str) -> None:
        """Open the profiler ranges of an activity, and close those of the previous activity."""
        self._ranges.close()
        self._ranges.enter_context(record_function(name))
        if torch.cuda.is_available():
            self._ranges.enter_context(torch.cuda.nvtx.range(name))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each activity in the newest measured update, by activity."""
        return self._phases.read() if self._phases else {}

    def waits(self, activity: Activity, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. Count the time until each item arrives as the given activity."""
        self.enter(activity)
        for item in items:
            yield item
            self.enter(activity)

    def poll_request(self, warn: Callable[[str], None]) -> None:
        """Check for a request file. Call this method at each exchange between ranks.

        Args:
            warn: Function that is called with a message if the request is invalid. Then the file is
                deleted.
        """
        if self._directory is None or self._profile is not None:
            return
        path = self._directory / PROFILE_REQUEST
        try:
            self._requested = _parse_request(read_file(path, _LARGEST_REQUEST))
            path.unlink()
        except FileNotFoundError:
            return
        except (ValueError, PlantedFileError) as error:
            with contextlib.suppress(OSError):
                remove(path, self._directory)
            warn(f"{path}: {error}; no profile is made, and the file was deleted")
        except OSError:
            return  # The next call tries again.

    def after_update(self, step: int) -> Path | None:
        """Start or stop a profile between two updates, and end the phase times of the update.

        Args:
            step: Number of completed updates.

        Returns:
            The path of the profile that was just completed, or None.
        """
        if self._phases:
            self._phases.after_update()
        if self._profile is not None:
            _, last = self._requested or (0, 0)
            return self.end(step) if step >= last else None
        if self._requested is not None and step >= self._requested[0]:
            self._first_step, count = step, self._requested[1]
            self._requested = (step, step + count)
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.start()
        return None

    def end(self, step: int) -> Path | None:
        """Stop and write the current profile, even if some of its updates are missing.

        Args:
            step: Number of completed updates.

        Returns:
            The path of the profile, or None if none was running.
        """
        running, self._profile, self._requested = self._profile, None, None
        if running is None or self._directory is None:
            return None
        self._ranges.close()
        running.stop()
        path = self._directory / PROFILES / f"steps-{self._first_step:08d}-{step:08d}{SUFFIX}"
        with held_path(path.parent, self._directory) as folder:
            # Another pod cannot guess the name and plant a link there.
            pending = folder / f"{path.name}.{secrets.token_hex(4)}.tmp"
            running.export_chrome_trace(str(pending))
            pending.rename(folder / path.name)
        return path


def _parse_request(text: bytes) -> tuple[int, int]:
    """Return the first update of the requested profile, and the number of updates."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("a profile request must be a JSON object")  # noqa: TRY004
    first, steps = document.get("from", 0), document.get("steps", 1)
    if not isinstance(first, int):
        raise ValueError(f'"from" must be a whole number, not {first!r}')  # noqa: TRY004
    if not (isinstance(steps, int) and 1 <= steps <= MOST_PROFILED_STEPS):
        limit = MOST_PROFILED_STEPS
        raise ValueError(f'"steps" must be a whole number from 1 to {limit}, not {steps!r}')
    return first, steps
