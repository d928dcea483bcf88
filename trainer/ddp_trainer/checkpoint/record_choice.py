"""Choose the record from which an attempt starts, from the parts that all nodes hold.

The newest whole record wins. The parts of a record belong to one update of one attempt, because its
name, its description and its state say so. A record is not used

- if `MOST_STARTS` attempts have started from it;
- without a common part;
- if its ranks had different weights after the same update, because the memory or the processor of
  one of them has a fault;
- if each rank holds a part of the weights or moments, and one of these parts is missing.

If a record lacks only what a rule can replace, such as the residues of a lost rank, it is used, and
a sentence says what is lost. A checkpoint of the same update is then better, because it has all.

Most often the names of the checkpoints already say that a record is newer, and no checkpoint needs
to be read (`is_newest`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.records import MOST_STARTS, Age, Part

_LISTED = 8
"""Maximum number of ranks that a sentence lists."""


@dataclass(frozen=True, slots=True)
class Held:
    """A part of a record, and the rank that can read it now."""

    holder: int
    part: Part


@dataclass(frozen=True, slots=True)
class RecordChoice:
    """The record from which an attempt starts, and who sends its parts."""

    record: CheckpointName
    common: Held
    own: list[Held]
    """Parts of single ranks, ordered by the rank whose part it is."""
    lost: list[int]
    """Ranks whose parts are lost."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Highest numbers in the names of a run's checkpoints, damaged ones included."""

    step: int = -1
    attempt: int = -1

    @classmethod
    def of(cls, names: Iterable[CheckpointName]) -> "Listed":
        """Return the highest numbers in some names."""
        numbers = [(name.step, name.attempt) for name in names]
        steps, attempts = zip(*numbers, strict=True) if numbers else ((-1,), (-1,))
        return cls(max(steps), max(attempts))


def is_newest(choice: RecordChoice, listed: Listed) -> bool:
    """Return whether a record is at least as new as each checkpoint, by their names alone.

    A name has no number of rollbacks. The attempt of the record has started from a state that was
    at least as new as each checkpoint of an earlier attempt. So only a later attempt can have saved
    a lower step after a rollback that the record lacks.
    """
    record = choice.record
    newer = record.step > listed.step or (record.step == listed.step and not choice.lost)
    return newer and record.attempt >= listed.attempt


def choose(found: Sequence[Sequence[Part]], saved: Age) -> tuple[RecordChoice | None, list[str]]:
    """Return the newest whole record, if it is at least as new as the checkpoint, and warnings.

    Args:
        found: Parts that each rank can read, by rank.
        saved: Age of the newest checkpoint.
    """
    groups: dict[tuple[Age, int, int], list[Held]] = defaultdict(list)
    for holder, parts in enumerate(found):
        for part in parts:
            groups[part.age, part.attempt, part.world_size].append(Held(holder, part))
    warnings: list[str] = []
    for age, attempt, world_size in sorted(groups, reverse=True):
        if age < saved:
            break
        held = groups[age, attempt, world_size]
        used = max(one.part.starts for one in held) >= MOST_STARTS
        choice = _used(held) if used else _assess(held)
        if isinstance(choice, RecordChoice) and not (age == saved and choice.lost):
            return choice, [*warnings, *_losses(choice)]
        if isinstance(choice, str) and age > saved and not warnings:
            warnings.append(choice)
    return None, warnings


def _assess(held: list[Held]) -> RecordChoice | str:
    """Return the parts of a record, or the reason why it is not usable."""
    part = held[0].part
    after = f"after update {part.step}"
    commons = [one for one in held if one.part.rank is None]
    own = {one.part.rank: one for one in reversed(held) if one.part.rank is not None}
    if len({one.part.digest for one in held}) > 1:
        return (
            f"the nodes of {_ranks(one.holder for one in held)} kept different states {after} in"
            " memory, so none is used: the memory or the processor of one of them has a fault"
        )
    lost = [] if part.division == "whole" else sorted(set(range(part.world_size)) - own.keys())
    divided = any(one.part.division == "all" for one in held)
    if not commons or (divided and lost):
        missing = f"the parts of {_ranks(lost)} are" if lost else "the part of all ranks is"
        return f"the state {after} in memory is not whole, so it is not used: {missing} missing"
    return RecordChoice(part.record, commons[0], [own[rank] for rank in sorted(own)], lost)


def _used(held: list[Held]) -> str:
    return (
        f"the state after update {held[0].part.step} in memory is not used again, because"
        f" {MOST_STARTS} attempts have started from it"
    )


def _losses(choice: RecordChoice) -> list[str]:
    """Return a sentence about the parts that are lost, and the rule that replaces them."""
    found = [choice.common.part, *(held.part for held in choice.own)]
    rules = []
    if any(part.residues for part in found):
        rules.append("the residues of powersgd start at zero there")
    if any(part.buffers for part in found):
        rules.append(f"the buffers there are those of rank {choice.common.part.writer}")
    if not choice.lost or not rules:
        return []
    what = f"what only {_ranks(choice.lost)} held after update {choice.record.step} is lost"
    return [f"{what}: {', and '.join(rules)}"]


def _ranks(ranks: Iterable[int]) -> str:
    """Return a list of ranks as words."""
    numbers = sorted(set(ranks))
    shown = ", ".join(map(str, numbers[:_LISTED]))
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"
