"""Profiles of a running run, requested by a file in its directory.

Only global rank 0 polls for the file, at the exchanges between ranks, and profiles only its own
process. So the ranks need no agreement.
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
from ddp_wire.files import PlantedFileError, held_path, read_file, remove

REQUEST = "PROFILE.json"
"""Request file in the run's directory. JSON: `steps`, the number of updates (1 by default), and
`from`, the first one (the next update by default)."""
FOLDER = "profiles"
"""Folder for profiles in the run's directory."""
SUFFIX = ".pt.trace.json"
"""File name suffix by which TensorBoard finds profiles."""
MOST_STEPS = 100
"""Maximum number of updates in one profile. A larger trace file is too large for its viewers."""

_LARGEST_REQUEST = 1 << 16

T = TypeVar("T")


class Trace:
    """Activities of the loop, as ranges for the profiler, for NVTX and for the phase times.

    The loop enters one activity after the other, and each ends when the next one starts.
    """

    def __init__(
        self,
        directory: Path | None = None,
        phases: PhaseTimer | None = None,
        entered: Sequence[Callable[[Activity], None]] = (),
    ) -> None:
        """Prepare the ranges, without a profile.

        Args:
            directory: The run's directory on global rank 0, else None. None disables profiles.
            phases: Timer for the durations of activities, if wanted.
            entered: Called with each activity that starts, one after the other.
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
        """Start an activity, and end the one before it."""
        for call in self._entered:
            call(activity)
        if self._phases is not None:
            self._phases.enter(activity.name.lower())
        if self._profile is not None:
            self._open_ranges(activity.name.lower())

    def _open_ranges(self, name: str) -> None:
        """Open the ranges of an activity in the profile, and close those of the one before it."""
        self._ranges.close()
        self._ranges.enter_context(record_function(name))
        if torch.cuda.is_available():
            self._ranges.enter_context(torch.cuda.nvtx.range(name))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each activity in the newest measured update, by name."""
        return self._phases.read() if self._phases else {}

    def waits(self, activity: Activity, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items. The time until each item arrives belongs to the activity."""
        self.enter(activity)
        for item in items:
            yield item
            self.enter(activity)

    def poll_request(self, warn: Callable[[str], None]) -> None:
        """Check for a request file. Call it at each exchange between ranks.

        Args:
            warn: Called with a sentence if the request is invalid. The file is deleted then.
        """
        if self._directory is None or self._profile is not None:
            return
        path = self._directory / REQUEST
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
        """Start or stop a profile between two updates, and end the times of the last one.

        Args:
            step: Updates done.

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
        """Stop the current profile and write it, even before its last update.

        Args:
            step: Updates done.

        Returns:
            The path of the profile, or None if none was running.
        """
        running, self._profile, self._requested = self._profile, None, None
        if running is None or self._directory is None:
            return None
        self._ranges.close()
        running.stop()
        path = self._directory / FOLDER / f"steps-{self._first_step:08d}-{step:08d}{SUFFIX}"
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
    if not (isinstance(steps, int) and 1 <= steps <= MOST_STEPS):
        raise ValueError(f'"steps" must be a whole number from 1 to {MOST_STEPS}, not {steps!r}')
    return first, steps
