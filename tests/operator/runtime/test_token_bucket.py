"""Token bucket: a burst at first, then a steady rate."""

import pytest

from ddp_operator.limits import Rate
from ddp_operator.runtime.token_bucket import TokenBucket


def test_burst_is_free_and_later_tokens_are_due_at_the_rate() -> None:
    bucket = TokenBucket(Rate(3, 2.0), 100.0)
    assert [bucket.take(100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]


def test_bucket_refills_up_to_its_burst() -> None:
    bucket = TokenBucket(Rate(2, 1.0), 0.0)
    assert [bucket.take(0.0) for _ in range(2)] == [0.0, 0.0]
    assert bucket.seconds_until_token(0.25) == pytest.approx(0.75)
    assert bucket.seconds_until_token(1000.0) == 0.0
    assert [bucket.take(1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]


def test_clock_that_is_set_back_gives_no_token_and_takes_none() -> None:
    bucket = TokenBucket(Rate(1, 1.0), 1000.0)
    bucket.take(1000.0)
    assert bucket.seconds_until_token(10.0) == 1.0
    assert bucket.seconds_until_token(11.0) == 0.0
