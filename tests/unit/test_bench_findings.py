"""The benchmark's verdict: a slow loop is found out, and a noisy machine gives none."""

import random

from tests.bench import trainer
from tests.bench.loops.findings import CONTROL, CONTROL_AGAIN, Block, Findings, enough

STEPS = 10
COUNTS = {"collectives": 1.0, "host syncs": 0.0, "aten ops": 400.0}


def findings(ours: float, *, peer: float = 1.1, noise: float = 0.002) -> Findings:
    """Twenty rounds on a machine whose speed changes by half; `noise` is each block's own."""
    chance = random.Random(0)  # noqa: S311 - no secret
    systems = {CONTROL: 1.0, CONTROL_AGAIN: 1.0, "ours": ours, "Peer": peer}
    found = Findings("task", rounds=20)
    for number in range(found.rounds):
        speed = 0.004 * chance.uniform(1, 1.5)
        for system, factor in systems.items():
            steps = [speed * factor * chance.lognormvariate(0, noise) for _ in range(STEPS)]
            found.blocks.append(Block(number, system, steps))
    found.counts = dict.fromkeys(systems, COUNTS)
    found.apart = dict.fromkeys(systems, 1e-8)
    return found


def test_a_loop_as_fast_as_the_minimal_one_meets_the_goals() -> None:
    assert enough(findings(1.0))
    assert trainer.misses(findings(1.0)) == []


def test_a_loop_three_hundredths_slower_is_found_out() -> None:
    missed = trainer.misses(findings(1.03))
    assert [sentence.split(" is ")[0] for sentence in missed] == ["task: p10", "task: median"]


def test_a_faster_peer_is_named() -> None:
    assert "task: Peer has the lower p10" in "; ".join(trainer.misses(findings(1.0, peer=0.97)))


def test_a_noisy_machine_gives_no_verdict_on_times() -> None:
    noisy = findings(1.0, noise=0.1)
    assert not enough(noisy)
    assert "no verdict" in trainer.verdicts([noisy])


def test_counts_and_weights_are_judged_on_any_machine() -> None:
    found = findings(1.0, noise=0.1)
    found.counts["ours"] = COUNTS | {"host syncs": 1.0}
    found.apart["Peer"] = 1e-3
    assert trainer.misses(found) == [
        "task: Peer's weights are 1.0e-03 apart from the minimal loop's",
        "task: 1 host syncs per step, 0 in the minimal loop",
    ]
