"""Tests of post-local SGD."""

from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD


def test_ranks_hold_equal_weights_after_each_period(launcher: Launcher) -> None:
    config = {"global_batch": 4, "parallel": {"local_sgd": {"period": 3, "start_step": 2}}}
    gang = launcher.call("probes:measure_local_sgd", SGD | config, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    found = [event["difference"] for event in gang.events("probe")]
    # Updates 0 and 1 reduce every gradient. Updates 2 to 4 and 5 to 7 are periods.
    assert [value == 0 for value in found] == [True, True, False, False, True, False, False, True]
