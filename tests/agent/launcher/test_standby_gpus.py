"""The standby's guard for jobs with GPUs: a fork that cannot use them does not run an attempt.

Real drivers are absent here. `make faults PART=gpus` proves with torch's CUDA build and a recording
driver that the standby makes no call that would spoil its forks.
"""

import logging
import os
import sys
from pathlib import Path

import pytest
import torch

from ddp_agent.clock import Clock, Ticker
from ddp_agent.launcher.torchrun import gpu_problem
from ddp_agent.processes import warm
from ddp_agent.processes.attempt_process import AttemptStarter
from ddp_agent.processes.launch import Launch
from ddp_agent.processes.supervise import ColdTree
from ddp_agent.processes.warm import Standby
from ddp_wire.contract import Env
from tests.agent.support import adopting_orphans, config, environment, wait_until

TWO_GPUS: dict[str, str] = {Env.GPUS_PER_NODE: "2"}


def see(monkeypatch: pytest.MonkeyPatch, gpus: int, *, bad_fork: bool = False) -> None:
    """Let torch see a number of GPUs."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: bad_fork)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: gpus)


@pytest.mark.parametrize("wanted", [{}, {Env.GPUS_PER_NODE: "0"}, {Env.GPUS_PER_NODE: "many"}])
def test_job_without_gpus_passes_the_gpu_check(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    see(monkeypatch, -1, bad_fork=True)
    assert gpu_problem(wanted) == ""


@pytest.mark.parametrize("seen", [2, 8])
def test_fork_that_sees_all_gpus_passes_the_gpu_check(
    monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    see(monkeypatch, seen)
    assert gpu_problem(TWO_GPUS) == ""


@pytest.mark.parametrize(("seen", "counted"), [(-1, 0), (0, 0), (1, 1)])
def test_fork_that_misses_a_gpu_fails_the_gpu_check(
    monkeypatch: pytest.MonkeyPatch, seen: int, counted: int
) -> None:
    see(monkeypatch, seen)
    assert gpu_problem(TWO_GPUS) == f"NVML finds {counted} of the pod's 2 GPUs"


def test_fork_of_a_process_that_has_initialised_cuda_fails_the_gpu_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see(monkeypatch, 2, bad_fork=True)
    assert gpu_problem(TWO_GPUS) == "an import has initialised CUDA in the standby"


def test_gpu_check_fails_if_torch_lacks_the_functions_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see(monkeypatch, 2)
    monkeypatch.delattr(torch.cuda, "_device_count_nvml")
    assert gpu_problem(TWO_GPUS).startswith(
        "torch does not report whether a forked process can use CUDA"
    )


def run_cold(starter: AttemptStarter, launch: Launch) -> None:
    """Run an attempt to its end, without a fork of the standby."""
    starter.ensure_standby()
    wait_until(starter.wait_ready, "the imports of the standby end", 60)
    process = starter.start(launch)
    assert isinstance(process._tree, ColdTree)
    wait_until(lambda: process.poll() is not None, "the attempt ends")
    starter.finish_logs()  # Its thread would outlive the test.
    starter.ensure_standby()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")
def test_agent_starts_cold_and_logs_the_reason_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The standby is a real process. Its GPU check fails, because this machine has no GPU."""
    given = environment(tmp_path, **{Env.STANDBY: "true"})
    command = property(lambda _: [sys.executable, "-c", ""])
    monkeypatch.setattr(Launch, "command", command)
    launch = Launch(
        attempt=1,
        arguments=[],
        environment={**os.environ, **given, **TWO_GPUS},
        heartbeats_dir=tmp_path,
        log_dir=tmp_path,
        log_copy_dir=None,
        failure_file=tmp_path / "failure.json",
    )
    made: list[Standby] = []
    start = warm.Standby

    def counted(environment: dict[str, str]) -> Standby:
        made.append(start(environment))
        return made[-1]

    monkeypatch.setattr("ddp_agent.processes.attempt_process.Standby", counted)
    with adopting_orphans(), caplog.at_level(logging.WARNING):
        starter = AttemptStarter(config(tmp_path, **{Env.STANDBY: "true"}), Ticker(Clock()))
        for _ in range(2):
            run_cold(starter, launch)
        starter.close()
        assert len(made) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "attempts of this pod start cold, because NVML finds 0 of the pod's 2 GPUs"
    ]
