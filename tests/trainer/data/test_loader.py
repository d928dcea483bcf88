"""Tests of loaders, worker processes, and the measurement of the wait for data."""

import pickle
from collections import UserDict
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ddp_trainer.config import DataConfig
from ddp_trainer.data.budget import CpuBudget, divide_cpus
from ddp_trainer.data.loader import LoaderFactory
from ddp_trainer.data.prefetch import on_device, tensors_in, to_device
from ddp_trainer.data.sampler import GlobalSampler, MicroBatch, RankSlice
from ddp_trainer.data.unreadable import Readable
from ddp_trainer.observe.rates import CpuMeter
from ddp_trainer.observe.wait_clock import WaitClock
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.task import RunEnv
from tests.trainer.collate_tasks import RampTask
from tests.trainer.rank_processes import Launcher
from tests.trainer.sample_tasks import OwnTask, ProbeConfig


@pytest.mark.parametrize(
    ("cpus", "ranks", "requested", "threads", "workers"),
    [
        (16, 2, None, 1, 7),
        (64, 2, None, 24, 8),
        (1, 1, None, 1, 0),
        (2, 4, None, 1, 0),
        (16, 2, 0, 8, 0),
        (16, 2, 3, 5, 3),
        (4, 2, 8, 1, 8),
    ],
)
def test_cpus_are_divided_among_compute_threads_and_loader_workers(
    cpus: int, ranks: int, requested: int | None, threads: int, workers: int
) -> None:
    budget = divide_cpus(cpus, ranks, requested)
    assert (budget.threads, budget.workers) == (threads, workers)
    assert (budget.warning is not None) == (cpus == 4)


def loaders_of(config: ProbeConfig, **data: bool) -> tuple[OwnTask, LoaderFactory]:
    ranks = Ranks()
    cpu = torch.device("cpu")
    task = OwnTask(config, RunEnv(ranks.rank, 1, 0, 1, cpu, 0))
    return task, LoaderFactory(task, DataConfig(**data), CpuBudget(1, 1), cpu)


def ramp(budget: CpuBudget, device: torch.device) -> tuple[RampTask, LoaderFactory]:
    task = RampTask(ProbeConfig(samples=4), RunEnv(0, 1, 0, 1, torch.device("cpu"), 0))
    return task, LoaderFactory(task, DataConfig(pin_memory=False), budget, device)


def torch_loader(loader: object) -> DataLoader[Any]:
    """Return torch's loader inside of a loader."""
    assert isinstance(loader, Readable)
    assert isinstance(loader.loader, DataLoader)
    return loader.loader


def test_loader_workers_do_not_get_a_copy_of_the_model() -> None:
    task, loaders = loaders_of(ProbeConfig(samples=4))
    loader = loaders.training(GlobalSampler(4, 2, seed=0), RankSlice(0, 1, 2), 0, 2)
    sent = pickle.dumps(torch_loader(loader).dataset)
    received = pickle.loads(sent)  # noqa: S301 - the bytes come from this process
    assert received.collate.__self__.model is None
    assert task.model is not None


def test_collate_without_workers_belongs_to_the_task_itself() -> None:
    task, loaders = ramp(CpuBudget(1, 0), torch.device("cpu"))
    sampler = GlobalSampler(4, 2, seed=0)
    list(loaders.training(sampler, RankSlice(0, 1, 2), 0, 2))
    assert task.batches == 2
    loaders.first(sampler, RankSlice(0, 1, 2), 0)
    assert task.batches == 2, "a rehearsal must not change the task"


@pytest.mark.parametrize(("workers", "device"), [(1, "cpu"), (0, "cuda")])
def test_collate_of_batches_prepared_ahead_sees_the_task_as_build_returned_it(
    workers: int, device: str
) -> None:
    task, loaders = ramp(CpuBudget(1, workers), torch.device(device))
    task.load_state_dict({"factor": 7.0, "batches": 3})
    loader = loaders.training(GlobalSampler(4, 2, seed=0), RankSlice(0, 1, 2), 0, 2)
    assert isinstance(loader, Readable)
    inner: Any = loader.loader
    assert inner.dataset.collate.__self__.factor == 1.0


def test_loader_has_the_configured_settings() -> None:
    _, loaders = loaders_of(ProbeConfig(), persistent_workers=False)
    loader = torch_loader(loaders.evaluation(RankSlice(0, 1, 2)))
    assert (loader.num_workers, loader.prefetch_factor) == (1, 2)
    assert not loader.persistent_workers
    assert not loader.pin_memory
    _, loaders = loaders_of(ProbeConfig())
    loader = torch_loader(loaders.evaluation(RankSlice(0, 1, 2)))
    assert loader.persistent_workers


def test_wait_clock_measures_only_the_wait_for_data() -> None:
    _, loaders = loaders_of(ProbeConfig(samples=6, slow=0.02))
    loaders = replace(loaders, budget=CpuBudget(1, 0))
    clock = WaitClock()
    loader = loaders.training(GlobalSampler(6, 2, seed=0), RankSlice(0, 1, 2), 0, 3)
    assert len(list(on_device(loader, torch.device("cpu"), clock))) == 3
    assert clock.read() >= 6 * 0.02
    assert clock.read() == 0


@pytest.mark.slow
def test_progress_events_show_slow_data(launcher: Launcher) -> None:
    arguments = ["--task=sample_tasks:build", "--global_batch=10", "--log.every_steps=1"]
    slow = launcher.train(*arguments, "--task.slow=0.01", world=None)
    fast = launcher.train(*arguments, world=None)
    assert slow.wait() == fast.wait() == [0]
    waits = [[e["data_wait_seconds"] for e in g.events("progress")] for g in (slow, fast)]
    assert min(waits[0]) >= 0.1
    assert sum(waits[0]) > sum(waits[1])
    for gang, least in ((slow, 0.1), (fast, 0.0)):
        for event in gang.events("progress"):
            assert event["cpu_percent"] > 0
            assert event["throttled_seconds"] >= 0
            seconds = event["phase_seconds"]
            assert list(seconds) == ["data", "forward", "backward", "optimizer"]
            assert seconds["data"] >= least
            assert all(value > 0 for value in seconds.values())


def test_cpu_meter_measures_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used, throttled = iter([10.0, 14.0, 14.0]), iter([1.0, 3.0, 3.0]), iter([5.0, 5.5, 6.0])
    monkeypatch.setattr("time.monotonic", clock.__next__)
    monkeypatch.setattr("time.process_time", used.__next__)
    meter = CpuMeter(throttled.__next__)
    assert meter.read() == {"cpu_percent": 50.0, "throttled_seconds": 0.5}
    assert meter.read() == {"cpu_percent": None, "throttled_seconds": 0.5}


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    names: list[str]
    size: int = field(init=False, default=2)


class Encoding(UserDict[str, torch.Tensor]):
    """A UserDict with a method `to`, like BatchEncoding of transformers."""

    moves = 0

    def to(self, device: torch.device) -> "Encoding":
        self.data = {key: value.to(device) for key, value in self.data.items()}
        self.moves += 1
        return self


def moved(batch: Any) -> Any:
    micro_batch = MicroBatch(batch, 1, 1, last=True)
    return to_device(micro_batch, torch.device("meta")).batch


def test_batch_objects_move_to_the_device_by_their_method_to() -> None:
    encoding = moved(Encoding(ids=torch.zeros(2)))
    assert type(encoding) is Encoding
    assert (encoding.moves, encoding["ids"].device.type) == (1, "meta")
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2)])
    assert moved([packed])[0].data.device.type == "meta"


def test_dataclasses_and_user_dicts_in_a_batch_move_field_by_field() -> None:
    batch = UserDict(pair=Pair(torch.zeros(2), ["a"]), more=[torch.zeros(1)])
    result = moved(batch)
    assert type(result) is UserDict
    assert (result["pair"].names, result["pair"].size) == (["a"], 2)
    assert [tensor.device.type for tensor in tensors_in(result)] == ["meta", "meta"]
    assert [tensor.device.type for tensor in tensors_in(batch)] == ["cpu", "cpu"]
