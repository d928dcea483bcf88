"""Tests of loops that take turns."""

import gc

import pytest

from bench.loops.turns import Turn, take_turns

NAMES = ("a", "b", "c")
STEPS = 20


def laps(seed: str) -> list[str]:
    """Return the name of the loop that made each step."""
    made: list[str] = []

    def loop(name: str, turn: Turn) -> None:
        for _ in range(STEPS):
            made.append(name)
            turn.pause()

    take_turns(NAMES, loop, seed)
    return made


def test_each_loop_makes_one_step_per_lap_in_a_seeded_order() -> None:
    made = laps("1")
    rounds = [made[i : i + len(NAMES)] for i in range(0, len(made), len(NAMES))]
    assert len(rounds) == STEPS
    assert all(sorted(names) == list(NAMES) for names in rounds)
    assert len(set(map(tuple, rounds))) > 1
    assert laps("1") == made != laps("2")


def test_garbage_collection_setting_of_one_loop_does_not_affect_another() -> None:
    seen: dict[str, list[bool]] = {name: [] for name in NAMES}

    def loop(name: str, turn: Turn) -> None:
        if name == "a":
            gc.disable()
        for _ in range(STEPS):
            turn.pause()
            seen[name].append(gc.isenabled())

    take_turns(NAMES, loop, "1")
    assert not any(seen["a"][1:])
    assert gc.isenabled()


def test_error_of_a_loop_reaches_the_caller() -> None:
    def loop(name: str, turn: Turn) -> None:
        turn.pause()
        if name == "b":
            raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        take_turns(NAMES, loop, "1")
