"""Tests of errors of rank 0 that every rank raises. Other tests cover them on several ranks."""

import pytest
import torch

from ddp_trainer.errors import FencedError, ReportedError, VolumeError
from ddp_trainer.ranks.collectives import errors_of_first_rank

CPU = torch.device("cpu")


def test_error_reported_by_one_rank_keeps_sentence_and_exit_code_on_all() -> None:
    with pytest.raises(VolumeError, match=r"^the volume is full$"), errors_of_first_rank(CPU):
        raise VolumeError("the volume is full")
    with pytest.raises(ReportedError, match=r"^fenced$") as raised, errors_of_first_rank(CPU):
        raise FencedError("fenced")
    assert raised.value.code == FencedError.code


def test_other_errors_are_raised_unchanged_and_success_returns() -> None:
    with pytest.raises(KeyError), errors_of_first_rank(CPU):
        raise KeyError("a mistake")
    done = False
    with errors_of_first_rank(CPU):
        done = True
    assert done
