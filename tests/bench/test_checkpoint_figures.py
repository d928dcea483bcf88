"""Tests of the figures and goals of the checkpoint benchmark."""

import pytest

from bench.checkpoint_figures import Figures, missed, table
from bench.saves import DCP, EACH, NOTHING, RECORD, SURVIVORS, TORCH, VOLUME

SECONDS = {NOTHING: 10.0, SURVIVORS: 10.0, VOLUME: 10.12, EACH: 20.0, TORCH: 10.6, DCP: 10.3}


def figures(**changed: float) -> Figures:
    made = Figures(updates=20, state_bytes=100)
    names = {"volume": VOLUME}
    made.blocks = [SECONDS | {names[name]: value for name, value in changed.items()}] * 3
    made.memory = {VOLUME: 100, EACH: 110, TORCH: 0, DCP: 90, RECORD: 110}
    made.loads = {VOLUME: [0.1, 0.2, 0.3], TORCH: [0.1], DCP: [0.3]}
    made.begin_seconds = 1e-6
    return made


def test_one_save_in_a_block_counts_as_one_each_minute() -> None:
    assert figures().lost(VOLUME)[0] == pytest.approx(0.12 / 60)
    assert figures().lost(TORCH)[0] == pytest.approx(0.01)


def test_saves_after_each_update_count_as_they_are() -> None:
    assert figures().lost(EACH) == (0.5, 0.5, 0.5)
    assert figures().lost(SURVIVORS)[0] == 0.0


def test_goals_that_are_met_cause_no_sentence() -> None:
    assert missed(figures()) == []


def test_each_missed_goal_is_one_sentence() -> None:
    late = figures(volume=10.9)
    late.memory[RECORD] = 220
    late.loads[VOLUME] = [0.5]
    late.begin_seconds = 0.001
    assert missed(late) == [
        "survivors cost 0.200% of an update, the goal is 0.1%",
        "a save each 60 s loses 1.50% of the throughput, the goal is 0.5%",
        "a survivors' record needs 2.20 x the state, the goal is 1.1",
        "a load takes 0.500 s, and 0.300 s with DCP",
    ]


def test_table_has_a_row_per_way_to_save() -> None:
    lines = table(figures()).splitlines()
    assert lines[3] == "| volume, each 60 s | 0.120 | 0.20% | 0.20% to 0.20% | 1.00 | 0.200 |"
    assert [line.split(" |")[0] for line in lines[2:]] == [
        "| survivors", "| volume, each 60 s", "| torch.save on rank 0, each 60 s",
        "| DCP async_save, each 60 s", "| volume, each update", "| a survivors' record",
    ]  # fmt: skip
