"""Measurement of where a rank's time goes."""

from ddp_trainer.observe.times import TimeMeter


def test_updates_are_measured_without_checkpoints_and_evaluations() -> None:
    now = 0.0
    meter = TimeMeter(lambda: now)
    meter.update()
    now = 0.02
    meter.update()
    now = 1.02
    with meter.apart("checkpoint"):
        now = 6.02
    with meter.apart("evaluation"):
        now = 8.02
    meter.update()
    found = meter.read()
    assert sum(found.updates) == 2, "the first one only starts the measurement"
    assert round(found.update_seconds, 6) == 1.02
    assert (found.checkpoint_seconds, found.evaluation_seconds) == (5.0, 2.0)
    assert found.updates[4] == 1, "0.02 s is in the bucket up to 0.025 s"


def test_times_for_a_report_are_means_since_the_last_report() -> None:
    now = 0.0
    meter = TimeMeter(lambda: now)
    assert meter.mean_update() == 0.0, "nothing is measured yet"
    for now in (0.0, 1.0, 4.0):  # noqa: B007 (the clock)
        meter.update()
    assert meter.mean_update() == 2.0
    now = 5.0
    meter.update()
    assert meter.mean_update() == 1.0


def test_times_since_the_first_update_exclude_everything_before_it() -> None:
    now = 0.0
    meter = TimeMeter(lambda: now)
    assert meter.since_first_update() is None
    meter.data_wait.total = 3.0
    with meter.apart("checkpoint"):
        now = 4.0
    meter.update()
    meter.data_wait.total = 3.25
    now = 5.0
    meter.update()
    with meter.apart("evaluation"):
        now = 7.0
    with meter.apart("checkpoint"):
        now = 7.5
    now = 8.0
    found = meter.since_first_update()
    assert found is not None
    assert found.training_seconds == 2.75, "1 s of update without 0.25 s of wait, 2 s of evaluation"
    assert (found.data_wait_seconds, found.checkpoint_seconds) == (0.25, 0.5)
