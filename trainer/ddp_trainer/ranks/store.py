"""Host the store of the process group on the address of the agent.

By default torch's store on rank 0 listens on all addresses of the machine.
"""

import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ddp_trainer.ranks.environment import Ranks
from ddp_wire.variables import Env

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable with which torch connects to an existing store instead of hosting one."""
_kept: list[TCPStore] = []
"""Reference to the store, which keeps it open until the process ends."""


@contextmanager
def store_of_rank_0(ranks: Ranks, environ: MutableMapping[str, str]) -> Iterator[None]:
    """Host the store for the new process group, if this is rank 0 and its agent has one address.

    `ddpjob run` binds its agents to loopback addresses, and a pod with hostNetwork binds its agent
    to the pod's address. The store must listen there too. In any other pod torch hosts the store.
    """
    address = environ.get(Env.AGENT_BIND, "")
    given = environ.get(_AGENT_STORE, str(False))  # torchrun always sets it.
    if ranks.rank != 0 or not address or given == str(True):
        yield
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    place = address, int(environ["MASTER_PORT"])
    listener = socket.create_server(place, family=family, backlog=1024)
    _kept[:] = [_host(environ["MASTER_ADDR"], listener)]
    environ[_AGENT_STORE] = str(True)
    try:
        yield
    finally:
        environ[_AGENT_STORE] = given


def _host(host: str, listener: socket.socket) -> TCPStore:
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
