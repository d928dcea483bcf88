"""Convert Slurm's environment variables to torchrun's, for a start with `srun`.

`srun` starts one process per task and sets each task's number. This module reads only the
environment. It neither calls Slurm nor resolves names.
"""

import re
from collections.abc import Iterator, Mapping

from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import integer

PORT_BASE = 15000
PORT_COUNT = 20000
"""Number of ports in the range for rendezvous, which ends below the ephemeral ports of common
systems."""

_GROUP = re.compile(r"([^,\[\]]*)(?:\[([^\[\]]*)\])?([^,\[\]]*),?")


def variables_of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the torchrun variables that a process started by Slurm does not have.

    Args:
        environ: The process's environment. Variables that are already set are not returned.

    Returns:
        The missing variables. Empty under torchrun, without Slurm, or for a job of one task.

    Raises:
        InputError: If Slurm's variables are incomplete or contradict each other.
    """
    if "RANK" in environ or "WORLD_SIZE" in environ or "SLURM_PROCID" not in environ:
        return {}
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" not in environ:
        return {}  # the batch script itself, not a process of srun
    tasks = integer(environ, "SLURM_STEP_NUM_TASKS") or integer(environ, "SLURM_NTASKS") or 1
    if tasks == 1:
        return {}
    found = {
        "RANK": str(_required(environ, "SLURM_PROCID")),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": str(_required(environ, "SLURM_LOCALID")),
        "LOCAL_WORLD_SIZE": str(_tasks_here(environ, tasks)),
        "MASTER_ADDR": _first_host(environ),
        "MASTER_PORT": str(PORT_BASE + (integer(environ, "SLURM_JOB_ID") or 0) % PORT_COUNT),
    }
    return {name: value for name, value in found.items() if name not in environ}


def hosts_of(nodes: str) -> list[str]:
    """Expand a Slurm node list to host names.

    Args:
        nodes: Node list, for example `login,gpu[003-005,9]-ib`.

    Raises:
        InputError: If the list has an unknown format.
    """
    hosts: list[str] = []
    position = 0
    while position < len(nodes):
        group = _GROUP.match(nodes, position)
        if group is None or group.end() == position:
            raise InputError(f'environment: SLURM_JOB_NODELIST "{nodes}" has an unknown format')
        before, numbers, after = group.groups()
        hosts += [before + n + after for n in (_numbers(numbers) if numbers else [""])]
        position = group.end()
    if not all(hosts) or not hosts:
        raise InputError(f'environment: SLURM_JOB_NODELIST "{nodes}" has an unknown format')
    return hosts


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise InputError(f'environment: SLURM_JOB_NODELIST has the unknown part "[{ranges}]"')
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def _first_host(environ: Mapping[str, str]) -> str:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        raise InputError("environment: SLURM_JOB_NODELIST must be set when SLURM_NTASKS is set")
    return hosts_of(nodes)[0]


def _tasks_here(environ: Mapping[str, str], tasks: int) -> int:
    """Return the number of tasks on this node, from a list by node such as `4(x2),3`."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    if not text:
        return integer(environ, "SLURM_NTASKS_PER_NODE") or tasks
    counts: list[int] = []
    for part in text.split(","):
        group = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if group is None:
            raise InputError(f'environment: SLURM_TASKS_PER_NODE "{text}" has an unknown format')
        counts += [int(group[1])] * int(group[2] or 1)
    node = integer(environ, "SLURM_NODEID") or 0
    if node >= len(counts):
        raise InputError(f'environment: SLURM_TASKS_PER_NODE "{text}" has no entry for node {node}')
    return counts[node]


def _required(environ: Mapping[str, str], name: str) -> int:
    number = integer(environ, name)
    if number is None:
        raise InputError(f"environment: {name} must be set when SLURM_NTASKS is set")
    return number
