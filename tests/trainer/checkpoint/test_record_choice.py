"""Tests of the choice of a record: when it is whole, and which parts belong to it."""

from typing import Any

import pytest

from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.record_choice import Listed, RecordChoice, choose, is_newest
from ddp_trainer.checkpoint.records import MOST_STARTS, Age, Part

NONE = Age()


def part(step: int, rank: int | None = None, **fields: Any) -> Part:
    given = {"attempt": 1, "writer": rank or 0, "world_size": 2} | fields
    return Part(step=step, rank=rank, **given)


def divided(step: int, rank: int | None = None, **fields: Any) -> Part:
    return part(step, rank, division="all", **fields)


def chosen(*found: list[Part], saved: Age = NONE) -> tuple[str | None, list[str]]:
    choice, warnings = choose(found, saved)
    return (str(choice.record) if choice else None), warnings


def test_newest_record_wins_over_all_nodes() -> None:
    choice, warnings = choose([[part(5)], [], [part(6)], [part(6)]], Age(0, 5))
    assert isinstance(choice, RecordChoice)
    assert (choice.common.holder, choice.own, choice.lost) == (2, [], [])
    assert warnings == []


def test_rollback_makes_all_before_it_older() -> None:
    assert chosen([part(9)], [part(5, rollbacks=1)])[0] == "step-00000005.attempt-1"
    assert chosen([part(9)], saved=Age(1, 5)) == (None, [])


@pytest.mark.parametrize(("step", "used"), [(4, False), (5, True), (6, True)])
def test_checkpoint_wins_only_if_it_is_newer(step: int, used: bool) -> None:
    assert (chosen([part(step)], saved=Age(0, 5))[0] is not None) == used


def test_record_from_which_two_attempts_have_started_is_not_used() -> None:
    name, warnings = chosen([part(6, starts=MOST_STARTS)], [part(6)], [part(5)])
    assert name == "step-00000005.attempt-1"
    (sentence,) = warnings
    assert sentence == (
        "the state after update 6 in memory is not used again, because 2 attempts have started"
        " from it"
    )


def test_divided_record_is_used_with_all_its_parts() -> None:
    choice, warnings = choose(
        [[divided(6), divided(6, 0)], [divided(6)], [divided(6, 1)]], Age(0, 5)
    )
    assert isinstance(choice, RecordChoice)
    assert choice.common.holder == 0
    assert [(held.holder, held.part.rank) for held in choice.own] == [(0, 0), (2, 1)]
    assert warnings == []


def test_divided_record_with_a_missing_part_gives_way_to_an_older_whole_one() -> None:
    old = [divided(5), divided(5, 0), divided(5, 1)]
    new = [divided(6, attempt=2), divided(6, 1, attempt=2)]
    record, warnings = chosen([*old, *new])
    assert record == "step-00000005.attempt-1"
    (sentence,) = warnings
    assert sentence == (
        "the state after update 6 in memory is not whole, so it is not used: the parts of rank 0"
        " are missing"
    )


@pytest.mark.parametrize(
    "other", [{"step": 7}, {"attempt": 2}, {"world_size": 3}, {"rollbacks": 1}], ids=str
)
def test_parts_of_two_updates_or_attempts_are_never_mixed(other: dict[str, int]) -> None:
    odd = divided(**({"step": 6, "rank": 1} | other))
    record, warnings = chosen([divided(6), divided(6, 0)], [odd])
    assert record is None
    assert "is not whole, so it is not used" in warnings[0]


def test_divided_record_without_a_common_part_is_not_used() -> None:
    record, warnings = chosen([divided(6, 0)], [divided(6, 1)])
    assert record is None
    assert warnings[0].endswith("so it is not used: the part of all ranks is missing")


def test_parts_with_other_weights_are_not_used() -> None:
    record, warnings = chosen([divided(6, digest=4), divided(6, 0, digest=4)],
                              [divided(6, 1, digest=5)])  # fmt: skip
    assert record is None
    (sentence,) = warnings
    assert sentence == (
        "the nodes of ranks 0, 1 kept different states after update 6 in memory, so none is used:"
        " the memory or the processor of one of them has a fault"
    )


def test_lost_part_that_a_rule_replaces_is_a_warning() -> None:
    own: dict[str, Any] = {"division": "own", "world_size": 3, "residues": True, "buffers": True}
    found = [part(6, writer=2, **own), part(6, 2, **own)]
    record, warnings = chosen(found)
    assert record == "step-00000006.attempt-1"
    (sentence,) = warnings
    assert sentence == (
        "what only ranks 0, 1 held after update 6 is lost: the residues of powersgd start at zero"
        " there, and the buffers there are those of rank 2"
    )
    assert chosen(found, saved=Age(0, 6)) == (None, [])
    assert chosen(found, saved=Age(0, 5))[0] == record


@pytest.mark.parametrize(
    ("listed", "newest"),
    [
        ([], True),
        ([(5, 1)], True),
        ([(6, 1)], True),
        ([(7, 1)], False),
        ([(7, 1, ".broken")], False),
        ([(5, 2)], True),
        ([(5, 3)], False),
        ([(5, 3), (4, 1)], False),
    ],
)
def test_names_tell_whether_a_record_is_the_newest_state(
    listed: list[tuple[Any, ...]], newest: bool
) -> None:
    choice, _ = choose([[part(6, attempt=2)]], NONE)
    assert choice is not None
    assert is_newest(choice, Listed.of(CheckpointName(*name) for name in listed)) == newest


def test_checkpoint_of_the_same_update_is_read_if_a_part_of_the_record_is_lost() -> None:
    choice, _ = choose([[part(6, division="own"), part(6, 0, division="own")]], NONE)
    assert choice is not None
    assert choice.lost == [1]
    assert not is_newest(choice, Listed(6, 1))
    assert is_newest(choice, Listed(5, 1))
