"""The torchrun line of an attempt, and the environment of its ranks."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_agent.config import AgentConfig
from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_wire.contract import Env, rendezvous_port
from ddp_wire.machine import cpu_count, threads_per_rank

JOIN_SECONDS = 600
"""How long torchrun waits for all nodes: pods may come minutes apart."""


@dataclass(frozen=True)
class Launch:
    """One attempt on this node, ready to start."""

    attempt: int
    arguments: list[str]
    """Arguments of torchrun."""
    environment: dict[str, str]
    beats_dir: Path
    log_dir: Path
    kept_log_dir: Path | None
    """Where the logs are kept too: on the shared volume, where there is one."""
    failure_file: Path

    @property
    def line(self) -> list[str]:
        """What a person would type for the same."""
        return ["torchrun", *self.arguments]

    @property
    def command(self) -> list[str]:
        """What is run: torchrun, wrapped so that it writes down which rank failed and why."""
        return [sys.executable, "-u", "-m", "ddp_agent.torchrun", *self.arguments]


def prepare(
    config: AgentConfig, attempt: int, scratch: Path, environment: Mapping[str, str] | None = None
) -> Launch:
    """Make the directories of an attempt and put its torchrun line together.

    Each attempt has directories of its own, so that nothing of the one before is mistaken for news.
    """
    home = scratch / f"attempt-{attempt}"
    beats_dir, failure_file = home / "beats", home / "failure.json"
    beats_dir.mkdir(parents=True, exist_ok=True)
    log_dir = home / "logs"
    log_dir.mkdir(exist_ok=True)
    given = dict(os.environ if environment is None else environment)
    return Launch(
        attempt=attempt,
        arguments=_arguments(config, attempt, log_dir),
        environment=given | _rank_environment(config, attempt, beats_dir, failure_file, given),
        beats_dir=beats_dir,
        log_dir=log_dir,
        kept_log_dir=_kept_log_dir(config, attempt),
        failure_file=failure_file,
    )


def _threads(config: AgentConfig, given: Mapping[str, str]) -> str:
    fitting = threads_per_rank(cpu_count(), config.procs_per_node)
    return given.get("OMP_NUM_THREADS", str(fitting))


def _kept_log_dir(config: AgentConfig, attempt: int) -> Path | None:
    if config.checkpoint_dir is None:
        return None
    return config.checkpoint_dir / "logs" / f"attempt-{attempt}" / f"node-{config.node_index}"


def _arguments(config: AgentConfig, attempt: int, log_dir: Path) -> list[str]:
    host = "true" if config.node_index == 0 else "false"
    port = rendezvous_port(config.rendezvous_port_base, attempt)
    arguments = [
        f"--nnodes={config.nodes}",
        f"--nproc-per-node={config.procs_per_node}",
        "--max-restarts=0",  # Recovery is a new attempt, never torchrun's own.
        "--rdzv-backend=c10d",
        f"--rdzv-id={config.job_uid}-{attempt}",  # Never reused: a closed id stays closed.
        f"--rdzv-endpoint={config.rendezvous_host}:{port}",
        # Stated, because torchrun's guess by comparing names can find that nobody hosts the store.
        f"--rdzv-conf=is_host={host},join_timeout={JOIN_SECONDS},last_call_timeout=1",
        f"--local-addr={config.pod_address}",
        f"--log-dir={log_dir}",
        "--tee=3",
        "--role=rank",
    ]
    return [*arguments, *_entrypoint(config.rank_command())]


def can_be_forked(config: AgentConfig) -> bool:
    """Whether ranks run Python code that a process which has torch imported can run."""
    return _entrypoint(config.rank_command())[0] != "--no-python"


def _entrypoint(command: list[str]) -> list[str]:
    """The command as torchrun takes it: a script, a module, or anything else by itself."""
    if command[0] in {"python", "python3"} and len(command) > 1:
        script_or_flag = command[1]
        if script_or_flag == "-m" or not script_or_flag.startswith("-"):
            return command[1:]
        command = [sys.executable, *command[1:]]  # The agent's own, whatever PATH says.
    return command if command[0] == "-m" else ["--no-python", *command]


def _rank_environment(
    config: AgentConfig,
    attempt: int,
    beats_dir: Path,
    failure_file: Path,
    given: Mapping[str, str],
) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": _threads(config, given),
        "PYTHONUNBUFFERED": "1",
        # The agent's store must not serve the ranks: a restart with it hangs one time in three
        # (docs/decisions/0004-rendezvous.md).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Mode 1, torchrun's own choice, can lose NCCL's flight-recorder dump (pytorch#121055).
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": given.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name} ${rank}] ",
        Env.ATTEMPT: str(attempt),
        Env.BEATS_DIR: str(beats_dir),
        FAILURE_FILE_ENV: str(failure_file),
    }
