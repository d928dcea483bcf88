"""Scales: round ticks around all values, and short texts."""

import math
import random

import pytest

from ddp_operator.report.scale import elapsed, linear, loss_scale, number_text
from ddp_wire.durations import duration_text


def test_axis_ticks_are_round_numbers_and_enclose_the_values() -> None:
    chance = random.Random(0)  # noqa: S311 - not used for security
    for _ in range(500):
        size = 10 ** chance.uniform(-9, 9)
        values = [chance.uniform(-size, size) for _ in range(chance.randint(1, 4))]
        scale = linear(values, 4, from_zero=chance.random() < 0.5)
        assert scale.ticks[0] <= min(values)
        assert scale.ticks[-1] >= max(values) * (1 - 1e-9)
        assert 2 <= len(scale.ticks) <= 7
        step = scale.ticks[1] - scale.ticks[0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert any(mantissa == pytest.approx(n, rel=1e-4) for n in (1, 2, 2.5, 5))
        assert all(0 <= scale.position(value) <= 1 for value in values)


@pytest.mark.parametrize("values", [[], [0.0], [7.0], [1e300, -1e300], [5e-324], [1e-320, 2e-320]])
def test_no_value_or_equal_or_extreme_values_still_give_a_valid_axis(values: list[float]) -> None:
    for scale in (linear(values, 4), linear(values, 4, from_zero=True), loss_scale(values, 4)):
        assert scale.high > scale.low
        assert all(0 <= scale.position(value) <= 1 for value in values)


def test_loss_over_several_decades_gets_a_logarithmic_axis() -> None:
    scale = loss_scale([2.3, 0.004], 4)
    assert scale.logarithmic
    assert scale.ticks == pytest.approx([0.001, 0.01, 0.1, 1, 10])
    assert scale.position(0.1) == pytest.approx(0.5)
    assert not loss_scale([2.3, 0.0], 4).logarithmic
    assert not loss_scale([2.3, 2.0], 4).logarithmic


@pytest.mark.parametrize("seconds", [0, 0.003, 1, 59, 61, 4000, 86_400, 3e6, 4e8, 1e11])
def test_time_axis_has_a_limited_number_of_ticks(seconds: float) -> None:
    for count in (4, 10):
        ticks = elapsed(seconds, count).ticks
        assert ticks[0] == 0
        assert 1 <= len(ticks) <= count + 1
        assert ticks[-1] <= max(seconds, 1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (59.99, "60 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_duration_is_shown_in_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (8889.2, "8889"), (12_345, "12.35k"), (2e6, "2M"), (1e-5, "1e-05")],
)
def test_numbers_are_shown_with_few_digits(value: float, text: str) -> None:
    assert number_text(value) == text
