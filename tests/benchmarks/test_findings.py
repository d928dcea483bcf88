"""The benchmark's verdict: a slow loop is found out, and a noisy machine gives none."""

import random

import pytest

from tests.benchmarks import trainer
from tests.benchmarks.loops.findings import CONTROL, CONTROL_AGAIN, OURS, Block, Findings, decided

STEPS = 10
COUNTS = {"collectives": 1.0, "host syncs": 0.0, "aten ops": 400.0}


def findings(
    ours: float, *, peer: float = 1.1, again: float = 1.0, noise: float = 0.002, rounds: int = 20
) -> Findings:
    """Rounds on a machine whose speed changes by half; `noise` is each step's own, and skewed."""
    chance = random.Random(0)  # noqa: S311 - no secret
    systems = {CONTROL: 1.0, CONTROL_AGAIN: again, OURS: ours, "Peer": peer}
    found = Findings("task", rounds=rounds)
    for number in range(found.rounds):
        speed = 0.004 * chance.uniform(1, 1.5)
        for system, factor in systems.items():
            steps = [speed * factor * (1 + chance.expovariate(1 / noise)) for _ in range(STEPS)]
            found.blocks.append(Block(number, system, steps))
    found.counts = dict.fromkeys(systems, COUNTS)
    found.apart = dict.fromkeys(systems, 1e-8)
    return found


def test_a_loop_as_fast_as_the_minimal_one_meets_the_goals() -> None:
    assert decided(findings(1.0))
    assert trainer.misses(findings(1.0)) == []
    assert "task: goals met" in trainer.verdicts([findings(1.0)])


@pytest.mark.parametrize("statistic", ["p10", "median"])
def test_equal_loops_have_equal_times_however_skewed_these_are(statistic: str) -> None:
    ratio = findings(1.0, noise=1.0, rounds=150).ratio(OURS, statistic, (CONTROL, CONTROL_AGAIN))
    assert ratio.low <= 1 <= ratio.high
    assert abs(ratio.value - 1) < 0.03


def test_a_loop_three_hundredths_slower_is_found_out() -> None:
    missed = trainer.misses(findings(1.03))
    assert [sentence.split(" is ")[0] for sentence in missed] == ["task: p10", "task: median"]
    assert "task: goals met" not in trainer.verdicts([findings(1.03)])


def test_a_faster_peer_is_named() -> None:
    missed = "; ".join(trainer.misses(findings(1.0, peer=0.97)))
    assert "of Peer, 1 allowed: missed" in missed


def test_a_noisy_machine_gives_no_verdict_on_times() -> None:
    noisy = findings(1.0, noise=1.0)
    assert not decided(noisy)
    assert trainer.misses(noisy) == []
    assert "of Peer, 1 allowed: open" in trainer.verdicts([noisy])


def test_few_rounds_give_no_verdict() -> None:
    assert not decided(findings(1.0, rounds=5))


def test_two_minimal_loops_that_differ_give_no_verdict_on_times() -> None:
    unfair = findings(1.05, again=1.01)
    assert not decided(unfair)
    assert trainer.misses(unfair) == []
    assert "the two minimal loops differ" in trainer.verdicts([unfair])


def test_counts_and_weights_are_judged_on_any_machine() -> None:
    found = findings(1.0, noise=1.0)
    found.counts[OURS] = COUNTS | {"host syncs": 1.0}
    found.apart["Peer"] = 1e-3
    assert trainer.misses(found) == [
        "task: Peer's weights are 1.0e-03 apart from the minimal loop's",
        "task: 1 host syncs per step, 0 in the minimal loop",
    ]
