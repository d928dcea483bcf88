"""Copy the state of a run to memory every few updates, for faults that end all ranks at once.

A rank that is killed keeps nothing, and neither do ranks inside an update. So if all ranks of a run
end at once, for example by the kernel for lack of memory, no rank can keep the newest update. The
copies are records (`checkpoint.records`) in memory that is allocated once (`checkpoint.slots`). The
next attempt takes the newest of records and checkpoints.

All ranks decide together in a small exchange at each snapshot:

- The main thread copies the state between two updates. A thread adds the checksums and publishes
  the record. A slot is used again only after the newer record is complete on all ranks.
- The number of updates between two snapshots follows from the cost of the slowest rank, so that
  snapshots take at most `SHARE` of the time.
- The memory is allocated after the first update, because only then the optimizer's state exists,
  and the peak of the memory is known. Snapshots end if memory runs short (`run.memory_watch`).
"""

import math
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ddp_trainer.checkpoint import room, slots
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.records import PartName
from ddp_trainer.checkpoint.slots import MemorySlot
from ddp_trainer.errors import ReportedError
from ddp_trainer.ranks.collectives import json_by_rank
from ddp_trainer.run.keeping import Keeper
from ddp_trainer.run.memory_watch import MemoryWatch
from ddp_trainer.run.run import Run
from ddp_trainer.run.survivors import Prepared, divided_state, is_broken, parts_of, say
from ddp_wire.activity import Activity

SHARE = 0.005
"""Maximum share of the time for snapshots, if the trainer chooses their interval."""
RESERVE_BYTES = 128 << 20
"""Memory that must stay free when slots are allocated, in bytes."""
_MOST_UPDATES = 1 << 20
_NOTABLE = 2.0
"""Ratio of two intervals from which the change is reported."""
_MIB = 1 << 20


class _NoRoomError(Exception):
    """Error for slots that do not fit into memory. Its text says why."""


@dataclass(frozen=True, slots=True)
class _Report:
    """Facts that one rank reports to all others before a snapshot."""

    on: bool
    """Whether this rank can take snapshots."""
    broken: bool
    """Whether its weights are not finite."""
    lacks_slots: bool
    """Whether slots must be allocated on this rank."""
    cost: float
    """Seconds that its newest snapshot took."""
    update: float
    """Mean seconds of its updates since the newest snapshot."""


class MemorySnapshots:
    """Schedule and writer of this rank's snapshots. Every rank has one, and calls it alike."""

    def __init__(self, run: Run) -> None:
        self._run = run
        every = run.config.checkpoint.memory_every_steps
        self._every = every if isinstance(every, int) else None
        self._enabled = every is not None and run.config.checkpoint.memory is not False
        """Whether any rank may take snapshots. Equal on all ranks."""
        self._folder = run.records
        self._keeper = Keeper(run.learner, run.task)
        self._on = self._folder is not None
        """Whether this rank can take snapshots. A node may have no folder."""
        self._splits = False
        """Whether each rank has a part of its own. Equal on all ranks."""
        self._next = run.position.step + 1
        self._taken: int | None = None
        self._cost = 0.0
        self._counted = (0, 0.0)
        self._reported = 0
        self._failure: str | None = None
        self._watch: MemoryWatch | None = None
        self._thread: threading.Thread | None = None

    def after_update(self) -> None:
        """Take a snapshot if one is due. Every rank must call this after each update."""
        run, learner = self._run, self._run.learner
        apart = learner.local_sgd is not None and learner.local_sgd.apart
        if not self._enabled or run.position.step < self._next or apart:
            return
        learner.trace.enter(Activity.CHECKPOINT)
        with run.report.apart("checkpoint"), learner.gate:
            self._exchange_and_take()

    def close(self) -> None:
        """Wait until the newest snapshot is complete, and end the watch."""
        self._finish()
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _exchange_and_take(self) -> None:
        start, step = time.perf_counter(), self._run.position.step
        self._finish()
        if self._watch is not None and self._watch.sentence:
            self._turn_off(self._watch.sentence)
        self._splits = divided_state(self._run, self._keeper).division != "whole"
        reports = self._exchange()
        on = [report.on for report in reports]
        if not any(on) or (self._splits and not all(on)):
            self._turn_off(None)
            self._enabled = False
            return
        if self._taken is not None and self._postpone(reports):
            return
        if any(report.broken for report in reports):
            self._next = step + 1
            return
        parts = self._parts()
        if any(report.lacks_slots for report in reports):
            self._allocate(parts)
            start = time.perf_counter()
        filled = self._fill(parts)
        self._taken, self._next, self._cost = step, step + 1, time.perf_counter() - start
        self._thread = threading.Thread(target=self._publish, args=(filled,), daemon=True)
        self._thread.start()

    def _names(self) -> list[PartName]:
        """Return a name of each part that this rank writes. Only their kinds count."""
        ranks = self._run.ranks
        record = CheckpointName(self._run.position.step, self._run.attempt)
        own = [PartName(record, ranks.rank)] if self._splits else []
        return own + ([PartName(record)] if ranks.local_rank == 0 else [])

    def _parts(self) -> list[Prepared]:
        """Return the parts that this rank writes."""
        kinds = {name.rank for name in self._names()}
        if not kinds or not self._on:
            return []
        try:
            return [one for one in parts_of(self._run, self._keeper) if one.part.rank in kinds]
        except ReportedError as error:
            self._turn_off(str(error))
            return []

    def _exchange(self) -> list[_Report]:
        """Report to all ranks, and return the reports of all ranks."""
        count, seconds = self._updates()
        updates, passed = count - self._counted[0], seconds - self._counted[1]
        lacks_slots = any(self._missing(name) for name in self._names())
        own = _Report(
            on=self._on,
            broken=is_broken(self._run.learner),
            lacks_slots=lacks_slots,
            cost=self._cost,
            update=passed / updates if updates else 0.0,
        )
        found = json_by_rank(asdict(own), self._run.learner.device)
        return [_Report(**document) for document in found]

    def _missing(self, name: PartName) -> int:
        """Return the number of slots to allocate on this rank for a part.

        A folder that cannot be read turns snapshots off.
        """
        if not self._on or self._folder is None:
            return 0
        try:
            return slots.missing(self._folder, name)
        except OSError as error:
            self._turn_off(str(error))
            return 0

    def _updates(self) -> tuple[int, float]:
        """Return the number of measured updates of this attempt, and their seconds."""
        times = self._run.report.times.read()
        return sum(times.updates), times.update_seconds

    def _postpone(self, reports: list[_Report]) -> bool:
        """Set the update of the next snapshot. Return whether it is a later one than this."""
        step, taken = self._run.position.step, self._taken or 0
        cost = max(report.cost for report in reports)
        update = sum(report.update for report in reports) / len(reports)
        every = self._every or every_updates(cost, update)
        self._note_interval(every, cost, update)
        self._next = taken + every
        if step < self._next:
            return True
        self._counted = self._updates()
        return False

    def _note_interval(self, every: int, cost: float, update: float) -> None:
        """Report the interval, if it was chosen and has changed much since the last report."""
        low, high = sorted((every, self._reported))
        if self._every is not None or (low > 0 and high < _NOTABLE * low):
            return
        self._reported = every
        self._run.report.note(
            f"the state is copied to memory every {every} updates"
            f" (checkpoint.memory_every_steps: auto), because a copy takes {cost:.2g} s and an"
            f" update {update:.2g} s"
        )

    def _allocate(self, parts: list[Prepared]) -> None:
        """Allocate the missing slots of all ranks, or turn snapshots off where they do not fit.

        Every rank must call this.
        """
        run, ranks, folder = self._run, self._run.ranks, self._folder
        sizes = {one.part.name: slots.size_of(one.checkpoint.snapshot) for one in parts}
        needed = sum(size * self._missing(name) for name, size in sizes.items())
        totals = json_by_rank([needed, sum(sizes.values())], run.learner.device)
        first = ranks.rank - ranks.local_rank
        node = sum(need for need, _ in totals[first : first + ranks.local_world_size])
        reason = None
        if ranks.local_rank == 0 and self._on and folder is not None:
            # A save copies the whole state to the memory of rank 0.
            saved = sum(size for _, size in totals) if ranks.is_first else 0
            peak = room.past_peak() * ranks.local_world_size
            later = saved + peak if run.checkpoints.enabled else peak
            try:
                reason = room.shortage(folder, node, RESERVE_BYTES + later)
            except OSError as error:
                reason = str(error)
        reasons = json_by_rank(reason, run.learner.device)
        if not self._on or folder is None:
            return
        if reasons[first] is not None or (self._splits and any(reasons)):
            self._turn_off(reason)
            return
        try:
            for one in parts:
                slots.allocate(
                    folder, one.part.name, one.checkpoint.snapshot, partial(_check, folder)
                )
        except (OSError, _NoRoomError) as error:
            self._turn_off(str(error))
            return
        if ranks.local_rank == 0 and self._watch is None:
            self._watch = MemoryWatch(folder)

    def _fill(self, parts: list[Prepared]) -> list[tuple[MemorySlot, Prepared]]:
        """Copy the state to slots."""
        filled: list[tuple[MemorySlot, Prepared]] = []
        if not self._on or self._folder is None:
            return filled
        try:
            for one in parts:
                slot = slots.acquire(self._folder, one.part.name)
                if slot is None:
                    raise FileNotFoundError("its memory was given back")
                filled.append((slot, one))
                slot.fill(one.part, one.checkpoint)
        except (OSError, ReportedError) as error:
            _release(filled)
            self._turn_off(str(error))
            return []
        return filled

    def _publish(self, filled: list[tuple[MemorySlot, Prepared]]) -> None:
        """Add checksums to the slots, and make them a record."""
        try:
            for slot, one in filled:
                slot.publish(one.part)
        except OSError as error:
            self._failure = str(error)
        finally:
            _release(filled)
        self._cost += time.thread_time()

    def _finish(self) -> None:
        """Wait until the newest snapshot is complete."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            self._turn_off(self._failure)
            self._failure = None

    def _turn_off(self, reason: str | None) -> None:
        """Take no more snapshots on this rank, and give their memory back.

        Args:
            reason: Reason to print. None if another rank prints it.
        """
        if not self._on:
            return
        self._on = False
        if reason is not None:
            say(self._run, f"the state is no longer copied to memory every few updates: {reason}")
        if self._folder is not None and self._run.ranks.local_rank == 0:
            slots.discard(self._folder)


def every_updates(cost: float, update: float) -> int:
    """Return the number of updates between two snapshots that keeps their share below `SHARE`.

    Args:
        cost: Seconds that a snapshot takes.
        update: Seconds of an update.
    """
    if update <= 0:
        return 1
    return min(max(1, math.ceil(cost / (SHARE * update))), _MOST_UPDATES)


def _release(filled: list[tuple[MemorySlot, Prepared]]) -> None:
    for slot, _ in filled:
        slot.release()


def _check(folder: Path, length: int) -> None:
    """Check that a piece of a slot fits into memory."""
    if reason := room.shortage(folder, length, RESERVE_BYTES // 2):
        raise _NoRoomError(reason)
