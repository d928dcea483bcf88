"""Tests of the recovery table and of its goals."""

import math

from bench.cases import CASES
from bench.figures import Recovery, Result, missed, phases_table, table

CRASH, LOST = CASES[0], CASES[-1]


def result(label: str, *seconds: float | None) -> Result:
    return Result(CRASH, label, [Recovery(one) for one in seconds])


def test_quantile_is_the_next_higher_value_of_the_sample() -> None:
    found = result("ours", *(float(n) for n in range(1, 11)))
    assert found.quantile(0.5, lambda r: r.seconds) == 6.0
    assert found.quantile(0.95, lambda r: r.seconds) == 10.0


def test_recovery_that_never_happened_counts_as_infinitely_long() -> None:
    found = result("ours", 1.0, 2.0, None)
    assert math.isinf(found.quantile(0.95, lambda r: r.seconds))
    assert missed([found]) == ["rank crash"]


def test_goals_apply_only_to_ddp_trainer() -> None:
    late = CRASH.goal_seconds + 1
    assert not missed([result("ours", 1.0), result("torchrun default", late)])
    assert missed([result("ours", late)]) == ["rank crash"]


def test_recovery_goal_of_a_lost_node_is_measured_from_detection() -> None:
    found = Result(LOST, "ours", [Recovery(30.0, after_detection=LOST.goal_seconds - 1)])
    assert not missed([found])


def test_recovery_table_has_a_row_per_fault_and_four_columns_per_gang() -> None:
    never = result("torchrun default", None, None)
    never.never = True
    ours = Result(
        CRASH, "ours", [Recovery(1.0, back=1.5, repeated=4), Recovery(3.0, back=4.5, repeated=6)]
    )
    text = table([ours, never])
    assert (
        text.splitlines()[-1]
        == "| rank crash | 2/2 | 3.00 | 3.00 | 4 | 3.00 | 5 | never | never | - | - |"
    )


def test_all_times_of_a_lost_node_are_measured_from_detection() -> None:
    found = Result(LOST, "ours", [Recovery(22.5, after_detection=5.0, back=23.25)])
    assert table([found]).splitlines()[-1] == (
        f"| node lost, from its detection | 1 | 5.00 | 5.00 | {LOST.goal_seconds:g} | 5.75 | - |"
    )


def test_table_of_phases_is_left_out_without_measurements() -> None:
    assert not phases_table([result("ours", 1.0)])
    measured = Result(CRASH, "ours", [Recovery(1.0, phases={"noticed": 0.5})])
    assert phases_table([measured]).splitlines()[-1].startswith("| rank crash | 0.50 |")
