"""Run all ranks of an attempt in forked processes, of which one may be supervised."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ddp_trainer.ranks.environment import Ranks
from tests.harness.ports import free_port
from tests.torture import operations
from tests.torture.operations import Decide, Result

Act = Callable[[Path, Ranks], str]
"""Function that a rank calls with the case's folder."""


def run(
    act: Act,
    world: int,
    home: Path,
    decide: Decide | None = None,
    *,
    reads: bool = True,
    watched: int = 0,
) -> Result:
    """Let each rank call `act`, and wait for the end of all.

    Args:
        act: Function of the case's folder and the rank.
        world: Number of ranks.
        home: Folder of the case.
        decide: Function that is called for each operation of the watched rank.
        reads: Whether operations that read count, too.
        watched: The rank whose operations count, and whose result is returned. A hang of any rank
            counts as its hang.
    """
    if world == 1:
        return operations.run(lambda: act(home, Ranks()), home, decide, reads=reads)
    port = free_port()
    calls = {rank: partial(_call, act, home, rank, world, port) for rank in range(world)}
    others = [
        operations.spawn(call, _folder(home, rank))
        for rank, call in calls.items()
        if rank != watched
    ]
    try:
        result = operations.run(calls[watched], home, decide, reads=reads)
    except BaseException:
        for other in others:
            other.kill()
        raise
    for end in [other.wait() for other in others]:
        if end.hung and not result.hung:
            result.hung = True
            result.output += f"\nanother rank hangs: {end.output}"
    return result


def _folder(home: Path, rank: int) -> Path:
    """Return a folder for the output of a rank."""
    folder = home / f"rank-{rank}"
    folder.mkdir(exist_ok=True)
    return folder


def _call(act: Act, home: Path, rank: int, world: int, port: int) -> str:
    """Join the other ranks, as under torchrun, and call `act`."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({name: str(number) for name, number in numbers.items()} | address)
    with suppress(KeyError):
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    return act(home, Ranks.from_environment(os.environ))
