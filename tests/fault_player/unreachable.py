"""Cut the operator off from all agents, as a NetworkPolicy or a service mesh does."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_wire.contract import AGENT_PORT
from ddp_wire.messages import Heartbeat
from tests.fault_player.containers import processes
from tests.harness.cluster import Cluster
from tests.harness.install import eventually, operator_pods

JSON = dict[str, Any]

_TABLE = "inet unreachable-agents"
_RULE = f"add chain {_TABLE} out {{ type filter hook output priority 0; }}"
_DROP = f"add rule {_TABLE} out tcp dport {AGENT_PORT} drop"


@contextmanager
def unreachable_agents(cluster: Cluster) -> Iterator[None]:
    """Drop all packets from the operator to agents for the time of the context.

    The pod of an earlier test's operator may still be ending, so wait until one pod is left.

    Raises:
        TimeoutError: There is not exactly one operator pod within a minute.
    """
    eventually(lambda: len(operator_pods(cluster)) == 1, "only one operator is left")
    (operator,) = operator_pods(cluster)
    container = operator["spec"]["containers"][0]["name"]
    pid = next(iter(processes(operator, container).values()))
    _nft(pid, f"add table {_TABLE}", _RULE, _DROP)
    yield
    _nft(pid, f"delete table {_TABLE}")


def _nft(pid: int, *commands: str) -> None:
    """Run nftables commands in the network namespace of a process."""
    line = ["nsenter", f"--net=/proc/{pid}/ns/net", "nft", "-f", "-"]
    subprocess.run(line, input="\n".join(commands), text=True, check=True)


def heartbeats_inside(pod: JSON) -> list[Heartbeat]:
    """Return the heartbeats of the newest attempt from the files in a pod's container.

    An agent behaves differently once a client has polled it, so this function polls none.
    """
    try:
        temporary = Path(f"/proc/{processes(pod)[1]}/root/tmp")
        files = temporary.glob("ddp-agent-*/**/beats/*.json")
        beats = [Heartbeat.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
    except (LookupError, OSError, ValidationError):
        return []  # The container ends, or a rank replaces its file.
    newest = max((beat.attempt for beat in beats), default=0)
    return [beat for beat in beats if beat.attempt == newest]
