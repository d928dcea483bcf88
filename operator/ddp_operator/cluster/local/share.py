"""Divide the GPUs and threads of this machine among the pods of a local run."""

import subprocess
from collections.abc import Mapping, Sequence

from ddp_wire.machine import threads_per_rank
from ddp_wire.variables import Env

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
_SECONDS = 30.0
"""Maximum seconds to wait for nvidia-smi. Without persistence mode it first loads the driver."""


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that programs may use, as in `CUDA_VISIBLE_DEVICES`.

    The list is empty if the program nvidia-smi does not exist.
    """
    if VISIBLE in environment:
        return [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(found))]


def share_of_pod(
    pod: Mapping[str, str], given: Mapping[str, str], gpus: Sequence[str], cpus: int
) -> dict[str, str]:
    """Return the environment variables that give a pod its share of this machine.

    Each rank gets one GPU, or none if there are too few for all ranks, because NCCL refuses two
    ranks on one GPU. Each rank gets an equal part of the cores. Otherwise each pod would use all
    cores, and an update is many times slower with more threads than cores.

    Args:
        pod: Environment variables of the pod.
        given: Environment variables of this process, which the pod inherits.
        gpus: GPUs of this machine.
        cpus: Number of CPUs of this machine.
    """
    ranks, index = int(pod[Env.PROCS_PER_NODE]), int(pod[Env.NODE_INDEX])
    all_ranks = ranks * int(pod[Env.NODES])
    share = {}
    if THREADS not in given:
        share[THREADS] = str(threads_per_rank(cpus, all_ranks))
    if gpus:
        own = gpus[index * ranks : (index + 1) * ranks] if len(gpus) >= all_ranks else []
        share[VISIBLE] = ",".join(own)
    return share


def too_few(gpus: Sequence[str], ranks: int, *, per_node: int = 0) -> str:
    """Return a warning if this machine has fewer GPUs than the job has ranks, or "".

    Args:
        gpus: GPUs of this machine.
        ranks: Number of all ranks.
        per_node: Number of GPUs that the job requests for each pod.
    """
    if len(gpus) >= ranks or not (gpus or per_node):
        return ""
    found = f"{len(gpus)}" if gpus else f"none that nvidia-smi lists (gpusPerNode is {per_node})"
    return (
        f"The {ranks} ranks train on the CPU, because each rank needs its own GPU and this machine"
        f" has {found}."
    )
