"""Secrets of a worker container: no process of it shows them in its environment."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_agent.processes.launch import RENDEZVOUS_KEY_ENV
from ddp_wire.contract import Env
from ddp_wire.secret_variables import take
from ddp_wire.signatures import random_text, rendezvous_id, rendezvous_key
from tests.agent.support import environment
from tests.harness.ports import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_secret_is_overwritten_in_memory_and_unset_once_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDP_TEST_SECRET", "abcdef")
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(b"DDP_TEST_SECRET")
    assert take(["DDP_TEST_SECRET", "DDP_TEST_NONE"]) == {"DDP_TEST_SECRET": "abcdef"}
    assert ctypes.string_at(address, 6) == bytes(6)
    assert libc.getenv(b"DDP_TEST_SECRET") is None
    assert take(["DDP_TEST_SECRET"]) == {}


PROBE = """
import os
pid, shown = os.getpid(), []
while pid > 1:
    shown.append(open(f"/proc/{pid}/environ", "rb").read().decode())
    shown.append(open(f"/proc/{pid}/cmdline", "rb").read().decode())
    if open(f"/proc/{pid}/cmdline").read().endswith("ddp_agent\\0"):
        break
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
open(os.path.dirname(__file__) + "/shown", "w").write("\\n".join(shown))
"""


@pytest.mark.slow
@pytest.mark.parametrize("standby", ["true", "false"], ids=["warm", "cold"])
def test_no_process_from_the_rank_to_the_agent_shows_a_secret(tmp_path: Path, standby: str) -> None:
    """The test runs whole agents, because the kernel keeps the environment of each process."""
    program, (pod, job) = tmp_path / "train.py", (random_text(), random_text())
    program.write_text(PROBE)
    (tmp_path / "attempt").write_text("1")
    changes = {
        Env.NODES: "1",
        Env.PROCS_PER_NODE: "1",
        Env.AGENT_PORT: "0",
        Env.AGENT_BIND: "127.0.0.1",
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.POD_ADDRESS: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE: str(free_port() - 1),
        Env.STANDBY: standby,
        Env.AGENT_SECRET: pod,
        Env.JOB_SECRET: job,
    }
    given = environment(
        tmp_path, **changes, **{Env.TASK: None, Env.COMMAND: json.dumps(["python", str(program)])}
    )
    command = [sys.executable, "-P", "-m", "ddp_agent"]
    path = {"PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(command, env={**given, **path}, timeout=100, check=False)
    assert ended.returncode == 0
    shown = (tmp_path / "shown").read_text()
    assert f"{Env.JOB_UID}=uid-1" in shown, "the probe read the agent's environment"
    assert shown.count("ddp_agent") >= 2
    key = rendezvous_key(job, rendezvous_id(job, "uid-1", 1))
    assert not [secret for secret in (pod, job, key) if secret in shown]
    assert RENDEZVOUS_KEY_ENV not in shown or standby == "false", "its value is overwritten"
