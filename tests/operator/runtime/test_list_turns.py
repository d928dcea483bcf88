"""Tests of the turns in which jobs list their pods, without an API server."""

from ddp_operator.cluster.base import Key
from ddp_operator.limits import LIST_AFTER_SECONDS, LIST_OF_JOB_SECONDS
from ddp_operator.runtime.list_turns import ListTurns

START = 1000.0


def job(number: int) -> Key:
    return ("team-a", f"job-{number:04}")


def lists(turns: ListTurns, since: float, until: float) -> list[tuple[float, Key]]:
    """Use each turn that is due. Return times and jobs."""
    found, now = [], since
    while now <= until:
        key = turns.next(now)
        if key is not None:
            turns.record_list(key, now)
            found.append((now, key))
            continue
        seconds = turns.seconds_until_next(now)
        if seconds is None:
            break
        now += max(seconds, 0.01)
    return found


def test_job_waits_for_its_watch_and_then_gets_one_list() -> None:
    turns = ListTurns()
    assert turns.seconds_until_next(START) is None
    for second in (0.0, 0.5, 1.0):
        turns.add(job(1), START + second)
    assert lists(turns, START + 1.0, START + 600.0) == [(START + LIST_AFTER_SECONDS, job(1))]


def test_one_job_is_listed_once_per_minute() -> None:
    turns, found, now = ListTurns(), [], START
    while now < START + 600.0:
        turns.add(job(1), now)
        found += lists(turns, now, now)
        now += 1.0
    assert len(found) == 10
    assert found[1][0] - found[0][0] == LIST_OF_JOB_SECONDS


def test_thousand_jobs_share_eight_lists_and_one_further_list_per_second() -> None:
    turns = ListTurns()
    for number in range(1000):
        turns.add(job(number), START)
    found = lists(turns, START, START + LIST_AFTER_SECONDS + 100.0)
    assert [at for at, _ in found[:8]] == [START + LIST_AFTER_SECONDS] * 8
    assert 105 <= len(found) <= 108
    assert len({key for _, key in found}) == len(found)


def test_job_that_no_longer_needs_its_list_delays_no_other_list() -> None:
    turns, now = ListTurns(), START + LIST_AFTER_SECONDS
    for number in range(20):
        turns.add(job(number), START)
    for _ in range(12):
        assert turns.next(now) is not None
    assert len(lists(turns, now, now)) == 8
    turns.add(job(0), now)
    assert lists(turns, now, now + 10.0)[-1][1] == job(0), "it may be listed again at once"


def test_only_jobs_that_must_still_wait_are_remembered() -> None:
    turns = ListTurns()
    for number in range(200):
        turns.add(job(number), START)
    lists(turns, START, START + 300.0)
    assert len(turns._last) <= LIST_OF_JOB_SECONDS + 9
