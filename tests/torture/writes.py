"""What is killed and what fails: each row is an attempt that reads and writes states of a run.

A new kind of store, or a new way to write one, is one more row here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture import gangs, operations
from tests.torture.attempts import Attempt
from tests.torture.lab import Lab, orderly
from tests.torture.operations import Decide, Operation, Result


@dataclass(frozen=True, slots=True)
class Row:
    """One way to write or read a state."""

    name: str
    before: tuple[Attempt, ...]
    """Attempts that ran before."""
    act: Attempt
    starts_only: bool = False
    """Whether the attempt only starts, so that the row covers what a load reads and writes."""
    power: bool = False
    """Whether the store outlives the machine, so that a loss of power must be harmless."""
    watched: int = 0
    """The rank whose operations count."""
    damage: str = ""
    """File of the newest state that is damaged before the attempt, below the case's folder."""

    def home(self, lab: Lab) -> Path:
        """Return a new folder in which the attempts before have run."""
        home = lab.copy(lab.template(self.name, *self.before))
        for path in home.glob(self.damage) if self.damage else ():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        return home

    def play(self, home: Path, decide: Decide | None, *, reads: bool = True) -> Result:
        """Run the attempt."""
        act = self.act.start if self.starts_only else self.act.train
        return gangs.run(act, self.act.world, home, decide, reads=reads, watched=self.watched)

    def recorded(self, lab: Lab, *, reads: bool = True) -> list[Operation]:
        """Return the file operations of the attempt when nothing disturbs it."""
        key = (self.name, reads)
        if key not in lab.recordings:
            home = self.home(lab)
            result = self.play(home, operations.proceed, reads=reads)
            orderly(result)
            lab.clean(home)
            lab.recordings[key] = result.operations
        return lab.recordings[key]

    @property
    def next(self) -> Attempt:
        """The attempt that follows."""
        act = self.act
        return Attempt(
            act.number + 1, act.volume, act.memory, strategy=act.strategy, world=act.world
        )


_SAVED = Attempt(1, memory=False, fail_after=9)
_KEPT = Attempt(1, fail_after=10)
_KEPT_ALONE = Attempt(1, volume=False, fail_after=10)
ROWS = (
    Row("a save", (_SAVED,), Attempt(2, memory=False, fail_after=5), power=True),
    Row("a survivors' write", (_KEPT,), Attempt(2, fail_after=1)),
    Row(
        "a survivors' write without a volume",
        (_KEPT_ALONE,),
        Attempt(2, volume=False, fail_after=1),
    ),
    Row("copies to memory", (_KEPT,), Attempt(2, fail_after=3, copies=1)),
    Row("a load from a volume", (_SAVED,), Attempt(2, memory=False), starts_only=True, power=True),
    Row("a load from memory", (_KEPT,), Attempt(2), starts_only=True),
    Row(
        "a load that skips a damaged checkpoint",
        (_SAVED,),
        Attempt(2, memory=False),
        starts_only=True,
        power=True,
        damage="run/step-00000008.*/optimizer.safetensors",
    ),
)


def _two(number: int, strategy: str, **fields: Any) -> Attempt:
    """Return an attempt of two ranks."""
    return Attempt(number, strategy=strategy, world=2, **fields)


def _saved(strategy: str) -> tuple[Attempt]:
    return (_two(1, strategy, memory=False, fail_after=9),)


def _kept(strategy: str) -> tuple[Attempt]:
    return (_two(1, strategy, fail_after=10),)


GANGS = (
    *(
        Row(
            f"rank {rank} in a save of two ranks, {strategy}",
            _saved(strategy),
            _two(2, strategy, memory=False, fail_after=5),
            power=True,
            watched=rank,
        )
        for strategy in ("fsdp2", "zero1")
        for rank in (0, 1)
    ),
    Row(
        "rank 0 in a save of two ranks, ddp, which keep their state",
        _kept("ddp"),
        _two(2, "ddp", fail_after=5),
    ),
    Row(
        "a save of two ranks in the background",
        _saved("fsdp2"),
        _two(2, "fsdp2", memory=False, every=2, background=True, settings={"max_steps": 12}),
    ),
    *(
        Row(
            f"rank {rank} in a survivors' write, {strategy}",
            _kept(strategy),
            _two(2, strategy, fail_after=1),
            watched=rank,
        )
        for strategy in ("zero1", "fsdp2")
        for rank in (0, 1)
    ),
    Row(
        "rank 1 in copies to memory, fsdp2",
        _kept("fsdp2"),
        _two(2, "fsdp2", fail_after=3, copies=1),
        watched=1,
    ),
    Row(
        "a load in parts from a volume, fsdp2",
        _saved("fsdp2"),
        _two(2, "fsdp2", memory=False),
        starts_only=True,
        power=True,
    ),
    Row(
        "rank 1 in a load in parts from memory, zero1",
        _kept("zero1"),
        _two(2, "zero1"),
        starts_only=True,
        watched=1,
    ),
)
"""Rows of several ranks, of which one is watched."""
