"""Tests of the benchmark's verdict: it detects a slow loop, and gives none on a noisy machine."""

import random
from dataclasses import replace

import pytest

from bench import trainer
from bench.loops.findings import CONTROL, CONTROL_AGAIN, OURS, Block, Findings, decided

STEPS = 10
COUNTS = {"collectives": 1.0, "host syncs": 0.0, "aten ops": 400.0}


def findings(
    ours: float,
    *,
    peer: float = 1.1,
    again: float = 1.0,
    noise: float = 0.002,
    rounds: int = 20,
    limit: float | None = 1.01,
) -> Findings:
    """Return made-up step times of a benchmark whose machine gets up to 50% slower at random."""
    rng = random.Random(0)  # noqa: S311 - no secret
    systems = {CONTROL: 1.0, CONTROL_AGAIN: again, OURS: ours, "Peer": peer}
    found = Findings("task", rounds=rounds, minimal_limit=limit)
    for number in range(found.rounds):
        speed = 0.004 * rng.uniform(1, 1.5)
        for system, factor in systems.items():
            steps = [speed * factor * (1 + rng.expovariate(1 / noise)) for _ in range(STEPS)]
            found.blocks.append(Block(number, system, steps))
    found.counts = dict.fromkeys(systems, COUNTS)
    found.weight_difference = dict.fromkeys(systems, 1e-8)
    return found


def test_loop_as_fast_as_minimal_meets_the_goals() -> None:
    assert decided(findings(1.0))
    assert trainer.misses(findings(1.0)) == []
    assert "task: goals met" in trainer.verdicts([findings(1.0)])


@pytest.mark.parametrize("statistic", ["p10", "median"])
def test_equal_loops_have_ratio_one_with_skewed_step_times(statistic: str) -> None:
    ratio = findings(1.0, noise=1.0, rounds=150).ratio(OURS, statistic, (CONTROL, CONTROL_AGAIN))
    assert ratio.low <= 1 <= ratio.high
    assert abs(ratio.value - 1) < 0.03


def test_loop_three_percent_slower_misses_the_goals() -> None:
    missed = trainer.misses(findings(1.03))
    assert [sentence.split(" is ")[0] for sentence in missed] == ["task: median"]
    assert "task: goals met" not in trainer.verdicts([findings(1.03)])


def test_workload_with_short_updates_has_no_goal_beside_the_minimal_loop() -> None:
    short = findings(1.05, limit=None)
    assert trainer.misses(short) == []
    assert "µs to" in trainer.verdicts([short])
    added = short.added_seconds() / short.time(CONTROL, "median")
    assert 0.04 < added < 0.06


def test_fabric_has_another_limit_than_accelerate() -> None:
    limits = {goal.other: goal.limit for goal in named("Fabric").goals()}
    assert limits == {CONTROL: 1.01, "Fabric": 1.02}
    assert {goal.other: goal.limit for goal in named("Accelerate").goals()}["Accelerate"] == 1.0


def named(peer: str) -> Findings:
    """Return findings whose peer has another name."""
    found = findings(1.0)
    found.counts[peer] = found.counts.pop("Peer")
    renamed = [
        replace(block, system=peer) if block.system == "Peer" else block for block in found.blocks
    ]
    found.blocks = renamed
    return found


def test_verdict_names_a_faster_framework() -> None:
    missed = "; ".join(trainer.misses(findings(1.0, peer=0.97)))
    assert "of Peer, goal 1: missed" in missed


@pytest.mark.parametrize("ours", [1.01, 1.001])
def test_limit_inside_a_narrow_interval_meets_the_goal(ours: float) -> None:
    near = findings(ours, peer=ours)
    assert decided(near)
    assert trainer.misses(near) == []
    assert "task: goals met" in trainer.verdicts([near])


def test_noisy_machine_gives_no_verdict_on_times() -> None:
    noisy = findings(1.0, noise=1.0)
    assert not decided(noisy)
    assert trainer.misses(noisy) == []
    assert "of minimal, goal 1.01: open" in trainer.verdicts([noisy])


def test_few_rounds_give_no_verdict() -> None:
    assert not decided(findings(1.0, rounds=5))


def test_differing_minimal_loops_give_no_verdict_on_times() -> None:
    unfair = findings(1.05, again=1.01)
    assert not decided(unfair)
    assert trainer.misses(unfair) == []
    assert "the two minimal loops differ" in trainer.verdicts([unfair])


def test_goals_for_counts_and_weights_apply_on_any_machine() -> None:
    found = findings(1.0, noise=1.0)
    found.counts[OURS] = COUNTS | {"host syncs": 1.0}
    found.weight_difference["Peer"] = 1e-3
    assert trainer.misses(found) == [
        "task: the weights of Peer differ by 1.0e-03 from the minimal loop's",
        "task: 1 host syncs per step, 0 in the minimal loop",
    ]
