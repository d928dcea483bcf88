"""Tests of numbers on the command line."""

import argparse

import pytest

from ddp_trainer.commands.arguments import check_positive, numbers
from ddp_trainer.errors import InputError


@pytest.mark.parametrize("text", ["1,2", "", "2,x", "-2"])
def test_invalid_list_of_numbers_is_refused_in_one_sentence(text: str) -> None:
    sentence = f'verify: --ranks must be integers above 1, separated by commas, not "{text}"'
    with pytest.raises(InputError, match=sentence):
        numbers("verify", "ranks", text, above=1)


def test_list_of_numbers_keeps_its_order_and_drops_repetitions() -> None:
    assert numbers("verify", "ranks", "4, 3,4", above=1) == [4, 3]


def test_option_below_one_is_refused_in_one_sentence() -> None:
    options = argparse.Namespace(samples=1, world_size=0)
    check_positive("check", options, "samples")
    with pytest.raises(InputError, match="check: --world-size must be 1 or more, not 0"):
        check_positive("check", options, "samples", "world_size")
