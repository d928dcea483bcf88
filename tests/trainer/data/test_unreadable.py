"""Tests of samples that cannot be read: the error names rank, update and sample."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from ddp_trainer.data.budget import CpuBudget
from ddp_trainer.data.sampler import GlobalSampler, RankSlice
from ddp_trainer.data.stream import StreamSampler
from ddp_trainer.data.unreadable import UnreadableError
from ddp_trainer.train import loop
from tests.trainer.data.test_loader import loaders_of
from tests.trainer.runs import opened
from tests.trainer.sample_tasks import Points, ProbeConfig


class Torn(Points):
    """A data set with one file that cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index == 5:
            raise OSError("truncated file\nmore text")
        return super().__getitem__(index)


class TornBatches(Torn):
    """A data set with one unreadable file, read a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        return [self[index] for index in indices]


class TornStream(torch.utils.data.IterableDataset[tuple[torch.Tensor, ...]]):
    """A stream with one unreadable file."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        points = Torn(9, 1, ProbeConfig())
        return map(points.__getitem__, range(9))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (Torn, "sample 5"),
        (TornBatches, "samples 4, 5"),
    ],
)
def test_read_error_names_the_sample_in_this_process_and_in_a_worker(
    data: type[Torn], what: str, workers: int
) -> None:
    task, loaders = loaders_of(ProbeConfig(samples=6))
    task.train_data = data(6, 1, ProbeConfig())
    loaders = replace(loaders, budget=CpuBudget(1, workers))
    sampler = GlobalSampler(6, 2, seed=0, shuffle=False)
    arriving = iter(loaders.training(sampler, RankSlice(0, 1, 2), 0, 3))
    assert [next(arriving).batch[3].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(UnreadableError) as raised:
        next(arriving)
    assert str(raised.value) == f"{what}: OSError: truncated file"
    notes = "".join(raised.value.__notes__)
    assert "in __getitem__" in notes
    assert "more text" in notes


def test_read_error_of_evaluation_data_names_eval_data() -> None:
    task, loaders = loaders_of(ProbeConfig())
    task.eval_data = Torn(6, 1, ProbeConfig())
    loaders = replace(loaders, budget=CpuBudget(1, 0))
    loader = loaders.evaluation(RankSlice(0, 1, 6))
    assert loader is not None
    with pytest.raises(UnreadableError, match=re.escape("evaluation: sample 5: OSError: trunc")):
        list(loader)


def test_read_error_of_a_stream_is_raised_after_the_batches_before_it() -> None:
    task, loaders = loaders_of(ProbeConfig())
    task.train_data = TornStream()
    loaders = replace(loaders, budget=CpuBudget(1, 0))
    arriving = iter(loaders.training(StreamSampler(2, 0), RankSlice(0, 1, 2), 0, 4))
    assert [next(arriving).batch[3].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(UnreadableError, match="the next samples of the stream: OSError: trunc"):
        next(arriving)


@pytest.mark.slow
def test_read_error_in_a_run_names_rank_and_update_and_sample() -> None:
    data = {"shuffle": False, "workers": 0}
    run = opened("sample_tasks:build_bad_sample", global_batch=2, max_steps=12, data=data)
    with pytest.raises(UnreadableError) as raised:
        loop(run)
    assert str(raised.value) == (
        "rank 0, update 9, sample 17: FileNotFoundError: no file of that name"
    )
    assert run.position.step == 8
