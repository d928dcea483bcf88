"""Tests that the number of worker processes depends on the time to prepare a batch."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from ddp_trainer.config.settings import resolve
from ddp_trainer.data import auto_workers
from ddp_trainer.data.auto_workers import WorkerChoice, choose_workers
from ddp_trainer.data.budget import CpuBudget
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.process_group import Route
from ddp_trainer.run import data as run_data
from ddp_trainer.run.parts import BuiltTask, Group
from ddp_trainer.run.source import Fingerprints
from ddp_trainer.task import RunEnv
from tests.trainer.runs import opened
from tests.trainer.sample_tasks import Points, ProbeConfig, ProbeTask, Stream

POINTS = Points(8, 1, ProbeConfig())


class Unpicklable(Points):
    def __init__(self) -> None:
        super().__init__(8, 1, ProbeConfig())
        self.convert: Callable[[int], int] = lambda number: number


def chosen(data: Any, *milliseconds: float, spare: int = 6) -> WorkerChoice:
    """Choose the number of workers for data whose first batches take these times."""
    now, times = [0.0], iter(milliseconds)

    def prepare() -> None:
        now[0] += next(times) / 1000

    return choose_workers(data, prepare, spare, lambda: now[0])


@pytest.mark.parametrize(
    ("data", "milliseconds", "spare", "workers", "reason"),
    [
        (POINTS, (900.0, 84.0), 6, 6, "a batch takes 84 ms to prepare"),
        (POINTS, (900.0, 0.5), 6, 0, "a batch takes 0.5 ms to prepare, less than 5 ms"),
        (POINTS, (), 0, 0, "the container has no CPUs to spare"),
        (Stream(POINTS), (), 6, 0, "each of them would read the whole stream"),
        (Unpicklable(), (9.0, 9.0), 6, 0, "the data cannot be pickled: "),
    ],
)
def test_workers_are_started_only_where_they_help(
    data: Any, milliseconds: tuple[float, ...], spare: int, workers: int, reason: str
) -> None:
    choice = chosen(data, *milliseconds, spare=spare)
    assert choice.workers == workers
    assert choice.reason.startswith(reason)
    assert choice.sentence().startswith(f"data.workers auto: {workers} worker processes per rank, ")


def test_failure_of_the_measured_batch_is_left_to_the_first_update() -> None:
    def fail() -> None:
        raise FileNotFoundError("no such image")

    choice = choose_workers(POINTS, fail, 6)
    assert choice == WorkerChoice(0, "the first batch cannot be prepared")


def test_all_objects_for_the_workers_must_be_picklable() -> None:
    times = iter(range(9))
    choice = choose_workers(
        POINTS, lambda: None, 6, lambda: float(next(times)), shipped=[None, lambda x: x]
    )
    assert choice.reason.startswith("the data cannot be pickled: ")


def test_no_workers_are_started_that_would_copy_large_data_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_workers, "LARGEST_COPY", 1 << 20)
    data = Points(8, 1, ProbeConfig())
    assert chosen(data, 9.0, 9.0).workers == 6
    data.x = torch.zeros(1 << 20)
    assert chosen(data, 9.0, 9.0).reason == "each of them would copy more than 1 MiB of data"


@pytest.mark.parametrize(
    ("seconds", "workers", "reason"),
    [
        (0.01, 7, "a batch takes 10 ms to prepare"),
        (0.001, 0, "a batch takes 1 ms to prepare, less than 5 ms"),
    ],
)
def test_rank_with_a_gpu_measures_its_first_batch(
    monkeypatch: pytest.MonkeyPatch, seconds: float, workers: int, reason: str
) -> None:
    times = count(0.0, seconds)
    measured = partial(choose_workers, clock=lambda: next(times))
    monkeypatch.setattr(run_data, "choose_workers", measured)
    monkeypatch.setattr(run_data, "cpu_count", lambda: 8)
    config = resolve({"data": {"pin_memory": False}, "global_batch": 2, "max_steps": 1})
    device = torch.device("cuda")
    task = ProbeTask(ProbeConfig(), RunEnv(0, 1, 0, 1, device, 0))
    built = BuiltTask(task, config, {}, [], Fingerprints("", ""), [], [])
    group = Group(device, config.batch_split(1), Route(None))
    data = run_data.prepare_data(built, None, Ranks(), group)
    assert data.loaders.budget == CpuBudget(threads=8 - workers, workers=workers)
    assert data.choice == WorkerChoice(workers, reason)


def test_run_on_the_cpu_has_no_workers_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    run = opened()
    assert run.config.data.workers == "auto"
    assert not isinstance(run.train_loader, torch.utils.data.DataLoader)
    assert "data.workers" not in capsys.readouterr().out
