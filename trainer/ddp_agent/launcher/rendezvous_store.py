"""Host the store of torchrun's rendezvous in a process of its own.

A store has a thread that resolves the addresses of its peers and locks glibc's resolver meanwhile.
A fork would copy the locked lock, and the child's first connection would wait forever. So the
launcher, which forks the ranks, must not host the store (docs/develop/decisions/0006-standby.md).

Process: launcher of node 0, and its fork, the store.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from ddp_wire.contract import Env
from ddp_wire.processes import end_with_parent

_TIMEOUT = timedelta(seconds=60)
"""Maximum time for which the store waits for its own first connection: torchrun's default."""


@contextlib.contextmanager
def hosted(config: LaunchConfig) -> Iterator[None]:
    """Host the store in a fork of this process if this node is its host.

    torchrun then connects to it as it does on any other node.

    Raises:
        ConnectionError: The store cannot listen, for example because its port is taken.
    """
    if config.rdzv_configs.get("is_host") != "true":
        yield
        return
    config.rdzv_configs["is_host"] = "false"
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, default_port=-1)
    pid = _fork_store(host, port)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_store(host: str, port: int) -> int:
    """Fork a process that hosts the store. Return its process id once the store is reachable."""
    launcher = os.getpid()
    report_in, report_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        _host_store(host, port, launcher, report_out)
    os.close(report_out)
    with os.fdopen(report_in) as pipe:
        report = pipe.read()
    if report != str(port):
        os.waitpid(pid, 0)
        raise ConnectionError(report or "the process of the rendezvous store has ended")
    return pid


def _store(host: str, port: int, bind: str) -> TCPStore:
    """Create the store. It listens on the same addresses as the agent, by default on all.

    `ddpjob run` binds its agents to loopback addresses, and a pod with hostNetwork to its own.
    """
    if not bind:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.create_server((bind, port), family=family, backlog=1024)
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def _host_store(host: str, port: int, launcher: int, report: int) -> NoReturn:
    """Host the store until the launcher ends. Report the store's port, or an error."""
    end_with_parent(launcher)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # A stop request concerns the ranks.
    try:
        store = _store(host, port, os.environ.get(Env.AGENT_BIND, ""))
        os.write(report, str(store.port).encode())
        os.close(report)
        while True:
            signal.pause()
    except Exception as error:  # noqa: BLE001 (the launcher reports it)
        os.write(report, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)
