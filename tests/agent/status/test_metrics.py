"""Metrics of a worker pod, as text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from ddp_agent.status.gpus import Gpu, GpuReader
from ddp_agent.status.metrics import AgentCollector
from ddp_wire.exposition import render
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.messages import AgentStatus, LocalHeartbeat, Progress, RankTimes
from ddp_wire.variables import Env
from tests.agent.support import config, heartbeat
from tests.operator.support import agent_status

GPU = Gpu(0, 0.5, 100, 200, 60.0, None, None, {"79": 2})


def series(tmp_path: Path, status: AgentStatus) -> dict[str, float]:
    """Return the values of all series by their name with labels."""
    own = config(tmp_path, **{Env.JOB_NAME: "digits", Env.PROCS_PER_NODE: "2"})
    text = render(AgentCollector(own, lambda: status, lambda: [GPU])).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (one.rpartition(" ") for one in lines)}


def times(**fields: Any) -> RankTimes:
    counts = [0] * (len(UPDATE_SECONDS_BUCKETS) + 1)
    counts[4] = 3  # From 0.01 to 0.025 s.
    return RankTimes(updates=counts, update_seconds=0.06, **fields)


def beat(local_rank: int, **fields: Any) -> LocalHeartbeat:
    update = {"rank": local_rank, "local_rank": local_rank, "times": times(), **fields}
    return LocalHeartbeat(**(heartbeat().model_dump() | update))


def test_heartbeats_become_series_per_rank(tmp_path: Path) -> None:
    status = agent_status(0, ranks=[beat(0, step=7), beat(1, times=times(phase_seconds={"a": 2}))])
    found = series(tmp_path, status)
    assert found['ddp_train_step{ddpjob="digits",rank="0"}'] == 7
    assert found['ddp_train_updates_total{ddpjob="digits",rank="1"}'] == 3
    assert found['ddp_train_phase_seconds{ddpjob="digits",phase="a",rank="1"}'] == 2
    assert found['ddp_train_update_duration_seconds_count{ddpjob="digits",node_index="0"}'] == 6
    bucket = 'ddp_train_update_duration_seconds_bucket{ddpjob="digits",le="0.01",node_index="0"}'
    assert found[bucket] == 0
    assert found[bucket.replace("0.01", "0.025")] == 6
    gpu = '{ddpjob="digits",gpu="0",node_index="0"}'
    assert found[f"ddp_gpu_utilization_ratio{gpu}"] == 0.5
    assert f"ddp_gpu_power_watts{gpu}" not in found, "the GPU does not report its power"
    assert found[f'ddp_gpu_xid_errors_total{gpu[:-1]},xid="79"}}'] == 2


def test_progress_becomes_series_of_the_job(tmp_path: Path) -> None:
    progress = Progress(step=1, loss=0.5, allreduce_seconds=0.25, allreduce_overlap_seconds=0.125)
    progress.loss_parts = {"kl": 0.25}
    found = series(tmp_path, agent_status(0, progress=progress))
    assert found['ddp_train_loss_part{ddpjob="digits",part="kl"}'] == 0.25
    assert found['ddp_train_loss{ddpjob="digits"}'] == 0.5
    assert found['ddp_train_allreduce_seconds{ddpjob="digits"}'] == 0.25
    assert found['ddp_train_allreduce_overlap_seconds{ddpjob="digits"}'] == 0.125
    assert 'ddp_train_grad_norm{ddpjob="digits"}' not in found, "it is not measured"


def known(value: float | None) -> float:
    assert value is not None
    return value


def test_hostile_program_adds_a_bounded_number_of_series(tmp_path: Path) -> None:
    ranks = [beat(number) for number in range(500)]
    values = {f"{number}{'x' * 4000}": 1.0 for number in range(500)}
    progress = Progress(step=1, metrics=values, loss_parts=values)
    found = series(tmp_path, agent_status(0, ranks=ranks, progress=progress))
    assert len(found) < 120
    assert max(map(len, found)) < 200


def test_command_without_heartbeats_still_has_container_metrics(tmp_path: Path) -> None:
    found = series(tmp_path, agent_status(0, ranks=[]))
    assert not [name for name in found if name.startswith("ddp_train")]
    assert 'ddp_agent_oom_kills_total{ddpjob="digits",node_index="0"}' in found


def test_rank_times_are_not_part_of_the_agent_status() -> None:
    status = agent_status(0).model_copy(update={"ranks": [beat(0)]})
    assert "updateSeconds" not in status.to_json()
    assert "updateSeconds" in beat(0).to_json()


def test_state_of_a_gpu_is_read_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake driver functions return percent and milliwatts, as the driver does."""
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=100, total=200),
        "nvmlDeviceGetPowerUsage": 300_000,
        "nvmlDeviceGetTemperature": 60,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)

    def refuse(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEccErrors", refuse)
    reader = GpuReader(lambda: {(0, "79"): 2, (1, "31"): 1})
    assert reader.read() == [Gpu(0, 0.25, 100, 200, 60, 300.0, None, {"79": 2})]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")
def test_machine_without_a_driver_has_no_gpus() -> None:
    assert GpuReader().read() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_driver_gives_each_value_in_base_units() -> None:
    """The driver counts memory of all programs, so it shows more than torch has taken."""
    before = GpuReader().read()
    taken = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    after = GpuReader().read()
    print(after)
    assert len(after) == torch.cuda.device_count()
    first = after[0]
    _, total = torch.cuda.mem_get_info(0)
    assert known(first.memory_used) - known(before[0].memory_used) >= len(taken)
    assert 0.9 * total <= known(first.memory_size) <= 1.1 * total
    assert 0 <= known(first.utilization) <= 1
    assert 10 < known(first.temperature) < 100
    assert 20 < known(first.power) < 1500
    assert first.ecc_errors == 0
