"""Each pod of a local run has its own part of the machine."""

from pathlib import Path

import pytest

from ddp_operator.cluster.local.share import share_of_pod, too_few, visible_gpus
from ddp_wire.variables import Env

FOUR = ["0", "1", "2", "3"]
LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n  MIG 1g.10gb Device 0: (UUID: MIG-a)\nGPU 1: NVIDIA\n"


def program(folder: Path, text: str) -> None:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def shares(nodes: int, gpus: list[str], **given: str) -> list[dict[str, str]]:
    """Return the shares of all pods with two ranks each, on a machine with 16 CPUs."""
    fixed: dict[str, str] = {Env.PROCS_PER_NODE: "2", Env.NODES: str(nodes)}
    pods: list[dict[str, str]] = [{**fixed, Env.NODE_INDEX: str(i)} for i in range(nodes)]
    return [share_of_pod(pod, given, gpus, 16) for pod in pods]


def test_each_pod_has_its_own_gpus() -> None:
    assert [one["CUDA_VISIBLE_DEVICES"] for one in shares(2, FOUR)] == ["0,1", "2,3"]


def test_machine_with_too_few_gpus_trains_without_gpus() -> None:
    assert [one["CUDA_VISIBLE_DEVICES"] for one in shares(3, FOUR)] == ["", "", ""]
    assert too_few(FOUR, 6) == (
        "The 6 ranks train on the CPU, because each rank needs its own GPU and this machine has 4."
    )


def test_threads_of_all_ranks_fit_the_cores() -> None:
    assert shares(2, []) == [{"OMP_NUM_THREADS": "4"}] * 2


def test_number_of_threads_that_the_user_sets_takes_precedence() -> None:
    assert shares(2, [], OMP_NUM_THREADS="3") == [{}, {}]


@pytest.mark.parametrize("gpus", [[], FOUR])
def test_machine_without_gpus_or_with_enough_gpus_gets_no_message(gpus: list[str]) -> None:
    assert too_few(gpus, 4) == ""


def test_job_that_asks_for_gpus_on_a_machine_without_gpus_gets_a_message() -> None:
    assert too_few([], 16, per_node=8) == (
        "The 16 ranks train on the CPU, because each rank needs its own GPU and this machine has"
        " none that nvidia-smi lists (gpusPerNode is 8)."
    )


def test_gpus_are_those_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, f"cat <<END\n{LISTED}END")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert visible_gpus({}) == ["0", "1"]


def test_failing_nvidia_smi_counts_as_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "echo GPU 0: broken; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert visible_gpus({}) == []


def test_missing_nvidia_smi_counts_as_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({}) == []


@pytest.mark.parametrize(
    ("value", "gpus"), [("2,3", ["2", "3"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]), ("", [])]
)
def test_gpus_that_the_user_selects_take_precedence(value: str, gpus: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == gpus
