"""Write all trackers of a run. All attempts log to the same tracked run, and no step twice.

A thread calls the trackers, so that a slow or absent server cannot delay the training.
"""

import contextlib
import importlib.util
import json
import math
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ddp_trainer.config import TrackerName
from ddp_trainer.errors import InputError
from ddp_trainer.trackers.services import Mlflow, Wandb
from ddp_trainer.trackers.tensorboard import TensorBoard
from ddp_wire.files import open_folder, read_file, replace_file

STATE_FILE = "trackers.json"
"""File in the run's directory with the newest logged step and the ids of the tracked runs."""
CLOSE_SECONDS = 10.0
"""Longest wait for the trackers at the end of an attempt, in seconds."""
_LARGEST_STATE = 1 << 20
_QUEUED = 1000
"""Maximum number of events that wait for the trackers. Further events are dropped."""
_TRAINING = ("loss", "lr", "grad_norm", "samples_per_second", "epoch", "mfu")
"""Fields of a progress event that the trackers log."""


class Tracker(Protocol):
    """A tracker with an open run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step. Steps never decrease."""

    def close(self, *, complete: bool) -> None:
        """End the attempt.

        Args:
            complete: Whether the run is complete. If not, another attempt follows.
        """


def check_installed(names: list[TrackerName]) -> None:
    """Check that the packages of the trackers can be imported.

    Raises:
        InputError: If a package is missing.
    """
    for name in names:
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise InputError(
                f"config: log.trackers names {name}, but this image has no package {name}; install"
                " it in the image, or remove it from log.trackers"
            )


class Trackers:
    """Writer of all trackers, on global rank 0. A failed tracker only causes a warning."""

    def __init__(
        self,
        names: list[TrackerName],
        directory: Path,
        *,
        attempt: int,
        run_name: str,
        config: Mapping[str, Any],
    ) -> None:
        """Prepare the trackers, without starting them.

        Args:
            names: Trackers to write.
            directory: The run's directory, which must exist before the first event.
            attempt: Number of the attempt.
            run_name: Name of the tracked runs.
            config: Resolved settings of the run, as JSON.
        """
        self._names, self._directory, self._attempt = names, directory, attempt
        self._run_name, self._config = run_name, config
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self._warned: set[str] = set()
        self._open: dict[str, Tracker] = {}
        self._runs: dict[str, str] = {}
        self._last_step = -1
        """Newest step that an earlier attempt logged. -1 if there is none."""
        self._step = -1
        """Newest step that any attempt logged. -1 if there is none."""

    def warn_with(self, warn: Callable[[str], None]) -> None:
        """Set the function that reports a failure. The thread calls it."""
        self._warn = warn

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Queue an event of the run for the trackers, if it has values. Return at once.

        Args:
            event: Kind of event.
            fields: Fields of the event.
        """
        if event not in {"progress", "eval", "summary", "stop"}:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trackers", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((event, fields))

    def close(self) -> None:
        """Wait until the thread has logged all events. Give up soon, because a server may hang."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        self._try("trackers", self._read_state)
        while (item := self._queue.get()) is not None:
            event, fields = item
            if event in {"summary", "stop"}:
                for name, tracker in self._open.items():
                    self._try(name, partial(tracker.close, complete=event == "summary"))
                self._open.clear()
            elif (step := fields["step"]) > self._last_step and (found := values(event, fields)):
                self._try("trackers", partial(self._write_state, step))
                for name in self._names:
                    self._try(name, partial(self._log, name, step, found))

    def _try(self, name: str, act: Callable[[], object]) -> None:
        """Call a function of a tracker. Report only the tracker's first failure."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the packages raise errors of many types
            if name not in self._warned:
                self._warned.add(name)
                first = (str(error).splitlines() or [""])[0]
                self._warn(
                    f"log.trackers: {name} failed: {type(error).__name__}: {first}; training"
                    " continues, and later failures of this tracker are not reported"
                )

    def _log(self, name: TrackerName, step: int, found: Mapping[str, float]) -> None:
        """Log values. Start the tracker first if an earlier start failed or there was none."""
        if name not in self._open:
            self._open[name] = self._start(name)
        self._open[name].log(step, found)

    def _start(self, name: TrackerName) -> Tracker:
        if name == "tensorboard":
            return TensorBoard(self._directory, self._attempt)
        if name == "mlflow":
            mlflow = Mlflow(self._runs.get(name), self._run_name, self._config)
            self._keep_run(name, mlflow.run_id)
            return mlflow
        run_id = self._runs.get(name) or uuid.uuid4().hex[:12]
        self._keep_run(name, run_id)
        with open_folder(self._directory / "wandb", self._directory):
            pass  # The package would follow a link in its place.
        return Wandb(run_id, self._run_name, self._config, self._directory)

    def _keep_run(self, name: str, run_id: str) -> None:
        self._runs[name] = run_id
        self._write_state(self._step)

    def _read_state(self) -> None:
        try:
            document = json.loads(read_file(self._directory / STATE_FILE, _LARGEST_STATE))
        except FileNotFoundError:
            return
        self._step = self._last_step = int(document["step"])
        self._runs = {str(name): str(run_id) for name, run_id in document["runs"].items()}

    def _write_state(self, step: int) -> None:
        """Save the step before the trackers log it, so that no later attempt logs it again."""
        self._step = step
        document = {"step": step, "runs": self._runs}
        replace_file(self._directory / STATE_FILE, json.dumps(document))


def values(event: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of an event by the names that the trackers show."""
    if event == "eval":
        named = {f"eval/{name}": value for name, value in fields["metrics"].items()}
    else:
        named = {f"train/{name}": fields.get(name) for name in _TRAINING}
        parts = fields.get("loss_parts", {})
        named |= {f"train/parts/{name}": value for name, value in parts.items()}
    return {
        name: float(value)
        for name, value in named.items()
        if value is not None and math.isfinite(value)
    }
