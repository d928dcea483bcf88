"""An attacker connects to torchrun's store and writes a pickle that executes code into it.

The store is a real one, in a torchrun that waits for its second node. The code of the attack only
creates a file in the test's folder.
"""

import json
import pickle
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousStateError

from ddp_agent.launcher import rendezvous_store
from ddp_agent.launcher.signed_rendezvous import SignedPickle
from ddp_agent.processes.launch import Launch, prepare
from ddp_agent.processes.warm import FLAGS
from ddp_wire.contract import Env, rendezvous_port
from ddp_wire.signatures import random_text
from tests.agent.support import config, members, wait_until
from tests.harness.ports import free_port

TORCHRUN = (
    "import sys; from ddp_agent.launcher.torchrun import main;"
    " sys.exit(main(sys.argv[1:], warm=True))"
)
"""Command of the launcher. In a warm start the standby forks the launcher instead."""
STATE = "torch.rendezvous."
"""Start of the key under which torch keeps the state of a rendezvous. The run id follows."""


class CreateFile:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


def prepare_node(home: Path, port: int, secret: str) -> Launch:
    """Return the launch of node 0 of two, as its agent prepares it."""
    changes = {
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE: str(port - rendezvous_port(0, 1)),
        Env.POD_ADDRESS: "127.0.0.1",
        Env.JOB_SECRET: secret,
    }
    made = config(home, **changes)
    return prepare(made, members(made), home / "scratch")


@dataclass
class WaitingNode:
    """A torchrun that waits for its second node, and hosts the store."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WaitingNode]]:
    """Yield a node without and one with signatures. They start together, because torch is slow."""
    started = {}
    for name, secret in (("unsigned", ""), ("signed", random_text())):
        folder, port = tmp_path_factory.mktemp(name), free_port()
        launch = prepare_node(folder, port, secret)
        command = [sys.executable, *FLAGS, "-c", TORCHRUN, *launch.arguments]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=launch.environment, stdout=log, stderr=log, cwd=folder
            )
        started[name] = WaitingNode(port, folder, process)
    yield started
    for node in started.values():
        node.process.kill()
        node.process.wait()


def attack(port: int, target: Path) -> str:
    """Replace the state of the rendezvous on a port by a pickle. Return the key of the state.

    The attacker knows neither the run id nor any secret: the store lists its keys.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30)
    )
    wait_until(lambda: any(STATE in key for key in store.list_keys()), "the state exists", 30)
    [key] = [key for key in store.list_keys() if STATE in key]
    store.set(key.removeprefix("/"), b64encode(pickle.dumps(CreateFile(target))).decode())
    return key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unsigned", "signed"])
def test_attacker_in_the_rendezvous_store_executes_code_only_without_signatures(
    nodes: dict[str, WaitingNode], name: str
) -> None:
    node = nodes[name]
    target = node.folder / "executed"
    attack(node.port, target)
    assert node.process.wait(30) == 1
    assert target.exists() is (name == "unsigned")
    failure = json.loads((node.folder / "scratch/attempt-1/failure.json").read_text("utf-8"))
    refused = "is not signed by an agent of this job" in failure["message"]
    assert refused is (name == "signed")


def test_signed_rendezvous_state_is_accepted_only_in_its_own_attempt() -> None:
    state, ours, other = {"round": 1}, SignedPickle(random_text()), SignedPickle(random_text())
    assert ours.loads(ours.dumps(state)) == state
    for forged in (other.dumps(state), pickle.dumps(state), b"", ours.dumps(state)[:-1]):
        with pytest.raises(RendezvousStateError, match="is not signed by an agent of this job"):
            ours.loads(forged)


def test_store_of_a_local_run_listens_on_its_agents_address() -> None:
    """Other hosts in the machine's network could reach a store on all addresses."""
    port = free_port()
    store = rendezvous_store._store("127.0.0.1", port, "127.0.0.1")
    client = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    assert client.host == "127.0.0.1"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    listening = "".join(tables).splitlines()
    mine = {line.split()[1] for line in listening if f":{port:04X} " in line and " 0A " in line}
    assert mine == {f"0100007F:{port:04X}"}
    del store
