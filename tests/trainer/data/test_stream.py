"""Tests of data without an index."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.data import DataLoader, get_worker_info

from ddp_trainer.data.sampler import RankSlice
from ddp_trainer.data.stream import MicroBatchStream, StreamSampler, evaluation_stream
from ddp_trainer.data.unreadable import Readable
from ddp_trainer.errors import InputError
from tests.trainer.rank_processes import Launcher

TASK = ["--task=sample_tasks:build_stream", "--global_batch=6", "--optimizer.name=sgd"]
TASK += ["--schedule.name=constant", "--schedule.warmup_steps=0"]


class NumberStream:
    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, number) for number in range(self.size)])


def count_samples(start: int, updates: int, world: int, size: int) -> tuple[Counter[Any], int]:
    seen: Counter[Any] = Counter()
    consumed = 0
    for rank in range(world):
        portions = StreamSampler(6, seed=1).portions(
            NumberStream(size), start, updates, RankSlice(rank, world, 2)
        )
        ends = 0
        for portion in portions:
            seen.update(portion.items if portion.weight else [])
            if portion.last:
                ends += 1
                consumed += portion.update_samples if rank == 0 else 0
        assert ends == updates
    return seen, consumed


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
@settings(max_examples=60)
def test_stream_can_resume_with_any_number_of_ranks(
    size: int, world: int, other: int, before: int
) -> None:
    whole, _ = count_samples(0, 10, 1, size)
    first, consumed = count_samples(0, before, world, size)
    second, _ = count_samples(consumed, 10 - before, other, size)
    assert first + second == whole
    assert max(whole.values()) == 1


def test_stream_without_samples_is_an_error() -> None:
    with pytest.raises(InputError, match='"train_data" holds no samples'):
        list(StreamSampler(6, seed=1).portions(NumberStream(0), 0, 1, RankSlice(0, 1, 2)))
    with pytest.raises(InputError, match='"eval_data" holds no samples'):
        list(evaluation_stream(NumberStream(0), RankSlice(0, 1, 2)))


class DividedStream(NumberStream):
    """A stream that each worker process reads a part of, as torch's documentation shows."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        if info is None:
            return super().__iter__()
        return islice(super().__iter__(), info.id, None, info.num_workers)


def test_workers_read_every_sample_of_a_stream_that_divides_itself() -> None:
    def portions() -> Iterator[Any]:
        return StreamSampler(6, seed=1).portions(DividedStream(20), 0, 5, RankSlice(0, 1, 2))

    stream = MicroBatchStream(portions, collate=str)
    alone = [batch.batch for batch in Readable(stream)]
    assert alone[:2] == ["[(0, 0), (0, 1)]", "[(0, 2), (0, 3)]"]
    assert len(alone) == 13  # 3 + 3 + 3 + 1 of the first pass, and 3 of the next
    loader: DataLoader[Any] = DataLoader(
        stream, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert [batch.batch for batch in Readable(loader)] == alone


@pytest.mark.slow
def test_ranks_workers_and_interruptions_do_not_change_the_weights(
    launcher: Launcher, tmp_path: Path
) -> None:
    def run(name: str, world: int, *extra: str) -> Any:
        folder = [f"--checkpoint.directory={tmp_path / name}", "--checkpoint.every_steps=1000"]
        gang = launcher.train(*TASK, *folder, *extra, world=world)
        assert gang.wait() == [0] * world, gang.err(0)
        return gang

    one = run("one", 1, "--max_steps=20")
    two = run("two", 2, "--max_steps=20", "--data.workers=2", "--micro_batch=1")
    run("three", 1, "--max_steps=7")
    three = run("three", 3, "--max_steps=20")
    assert three.events("resume")[0]["message"] == "resumed at step 7 of 20"
    metrics = [gang.events("summary")[0]["metrics"]["loss"] for gang in (one, two, three)]
    assert metrics[1:] == pytest.approx([metrics[0]] * 2, rel=1e-5)
    assert one.events("summary")[0]["epoch"] is None
    weights = [
        load_file(max((tmp_path / name).glob("step-*")) / "model.safetensors")
        for name in ("one", "two", "three")
    ]
    for key, value in weights[0].items():
        assert value.allclose(weights[1][key], atol=1e-6, rtol=0)
        assert value.allclose(weights[2][key], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], 'config: "max_steps" must be stated, because train_data has no length'),
        (
            ["--max_steps=5", "--epochs=2"],
            'config: "epochs" must not be stated, because train_data has no length',
        ),
    ],
)
def test_stream_needs_max_steps_and_no_epochs(
    launcher: Launcher, arguments: list[str], sentence: str
) -> None:
    gang = launcher.train(*TASK, *arguments, world=None)
    assert gang.wait() == [2]
    assert gang.err(0) == sentence + "\n"
