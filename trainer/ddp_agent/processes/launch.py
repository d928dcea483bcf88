"""Build the torchrun command line of an attempt and the environment of its ranks.

Process: agent (loop). The launcher reads the names of variables.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_agent.config import AgentConfig
from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_agent.members import Members
from ddp_agent.processes.warm import FLAGS
from ddp_wire.contract import Env, rendezvous_port
from ddp_wire.machine import cpu_count, threads_per_rank
from ddp_wire.signatures import rendezvous_id, rendezvous_key

SHUTDOWN_ENV = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Environment variable of torch from 2.13 on: seconds that torchrun waits for its ranks after
SIGTERM."""
RENDEZVOUS_KEY_ENV = "DDP_RENDEZVOUS_KEY"
"""Environment variable with the key that signs the rendezvous state. Only the launcher has it, not
the ranks."""
TORCHRUN_PREFIX = "PET_"
"""Prefix of environment variables that override the defaults of torchrun's arguments."""
JOIN_SECONDS = 600
"""Maximum seconds for which torchrun waits for all nodes, because pods may start minutes apart."""


@dataclass(frozen=True)
class Launch:
    """All data that is needed to start one attempt on this node."""

    attempt: int
    arguments: list[str]
    """Command-line arguments of torchrun."""
    environment: dict[str, str]
    heartbeats_dir: Path
    log_dir: Path
    log_copy_dir: Path | None
    """Directory for a copy of the logs on the shared volume. None without a volume."""
    failure_file: Path

    @property
    def line(self) -> list[str]:
        """The torchrun command line of the attempt, for people to read."""
        return ["torchrun", *self.arguments]

    @property
    def command(self) -> list[str]:
        """Command of a cold start: torchrun in a wrapper that writes the file about a failure."""
        return [sys.executable, *FLAGS, "-m", "ddp_agent.launcher.torchrun", *self.arguments]


def prepare(
    config: AgentConfig,
    members: Members,
    scratch: Path,
    environment: Mapping[str, str] | None = None,
) -> Launch:
    """Create the directories of an attempt and build its torchrun command line.

    Each attempt has new directories, so that it never reads files of the previous attempt.
    """
    attempt = members.attempt
    home = scratch / f"attempt-{attempt}"
    for older in scratch.glob("attempt-*"):
        if older.name != f"attempt-{attempt - 1}":  # Its last lines may still be copied.
            shutil.rmtree(older, ignore_errors=True)
    heartbeats_dir, failure_file = home / "beats", home / "failure.json"
    heartbeats_dir.mkdir(parents=True, exist_ok=True)
    log_dir = home / "logs"
    log_dir.mkdir(exist_ok=True)
    given = without_torchrun_defaults(os.environ if environment is None else environment)
    return Launch(
        attempt=attempt,
        arguments=_arguments(config, members, log_dir),
        environment=given | _rank_environment(config, attempt, heartbeats_dir, failure_file, given),
        heartbeats_dir=heartbeats_dir,
        log_dir=log_dir,
        log_copy_dir=_log_copy_dir(config, attempt),
        failure_file=failure_file,
    )


def without_torchrun_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that override torchrun's arguments.

    For example, with `PET_STANDALONE=1` each node would train alone.
    """
    return {name: value for name, value in given.items() if not name.startswith(TORCHRUN_PREFIX)}


def _threads(config: AgentConfig, given: Mapping[str, str]) -> str:
    default = threads_per_rank(cpu_count(), config.procs_per_node)
    return given.get("OMP_NUM_THREADS", str(default))


def _log_copy_dir(config: AgentConfig, attempt: int) -> Path | None:
    if config.checkpoint_dir is None:
        return None
    return config.checkpoint_dir / "logs" / f"attempt-{attempt}" / f"node-{config.node_index}"


def _arguments(config: AgentConfig, members: Members, log_dir: Path) -> list[str]:
    host, attempt = "true" if members.is_first else "false", members.attempt
    run_id = rendezvous_id(config.job_secret, config.job_uid, attempt)
    port = rendezvous_port(config.rendezvous_port_base, attempt)
    arguments = [
        f"--nnodes={len(members.nodes)}",
        f"--nproc-per-node={config.procs_per_node}",
        "--max-restarts=0",  # A new attempt replaces torchrun's own restarts.
        "--rdzv-backend=c10d",
        f"--rdzv-id={run_id}",  # Never reused: a closed rendezvous stays closed.
        f"--rdzv-endpoint={members.host}:{port}",
        # Without is_host, torchrun compares host names and may decide that no node hosts the store.
        f"--rdzv-conf=is_host={host},join_timeout={JOIN_SECONDS},last_call_timeout=1",
        f"--local-addr={config.pod_address}",
        f"--log-dir={log_dir}",
        "--tee=3",
        "--role=rank",
    ]
    return [*arguments, *_entrypoint(config.rank_command())]


def can_be_forked(config: AgentConfig) -> bool:
    """Return whether the ranks run a Python script or module, which a forked process can run."""
    return _entrypoint(config.rank_command())[0] != "--no-python"


def command_problem(config: AgentConfig, environment: Mapping[str, str] | None = None) -> str:
    """Return the reason why the job's command cannot start on this node, or ""."""
    if config.command is None:
        return ""
    given = os.environ if environment is None else environment
    first, *rest = entry = _entrypoint(config.rank_command())
    if _lacks_program(entry):
        needs = "python needs a script, a module or code"
        return f"spec.command: {needs}, but gets none or an empty argument"
    if first == "--no-python":
        path = given.get("PATH", os.defpath)
        found = shutil.which(rest[0], path=path)
        where = "an executable file" if "/" in rest[0] else f"in PATH ({path})"
        return "" if found else f"spec.command: the program {rest[0]} must be {where}"
    if first == "-m":
        package = rest[0].partition(".")[0]
        if _has_module(package, given):
            return ""
        return f"spec.command: no module named {package} is installed or in {Path.cwd()}"
    if Path(first).exists():
        return ""
    return f"spec.command: the script {first} must exist, but {Path.cwd()} has no such file"


def _lacks_program(entry: list[str]) -> bool:
    """Return whether a Python command names no program, on which torchrun itself would fail."""
    arguments = entry[2:] if entry[:2] == ["--no-python", sys.executable] else entry
    given = [one for one in arguments if not one.startswith("-")]
    return given[0] == "" if given else "-m" in arguments


def _has_module(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the ranks can import a module or package, without importing user code."""
    if not name:
        return True  # The interpreter states what is wrong with a relative name.
    importlib.invalidate_caches()
    own = [] if environment.get("PYTHONSAFEPATH") else [str(Path.cwd())]
    if importlib.machinery.PathFinder.find_spec(name, own) is not None:
        return True
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _entrypoint(command: list[str]) -> list[str]:
    """Return the command in the form that torchrun expects: script, -m module or --no-python."""
    if command[0] in {"python", "python3"} and len(command) > 1:
        script_or_flag = command[1]
        if script_or_flag == "-m" or not script_or_flag.startswith("-"):
            return command[1:]
        command = [sys.executable, *command[1:]]  # The agent's interpreter, not that on PATH.
    return command if command[0] == "-m" else ["--no-python", *command]


def _rank_environment(
    config: AgentConfig,
    attempt: int,
    heartbeats_dir: Path,
    failure_file: Path,
    given: Mapping[str, str],
) -> dict[str, str]:
    run_id = rendezvous_id(config.job_secret, config.job_uid, attempt)
    return {
        RENDEZVOUS_KEY_ENV: rendezvous_key(config.job_secret, run_id),
        "OMP_NUM_THREADS": _threads(config, given),
        "PYTHONUNBUFFERED": "1",
        # The ranks must not reuse the agent's store: one restart in three then hangs
        # (docs/develop/decisions/0004-rendezvous.md).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Otherwise torchrun kills the ranks 30 s after SIGTERM, for any grace period of the pod.
        SHUTDOWN_ENV: given.get(SHUTDOWN_ENV, f"{config.stop_grace_seconds:.0f}"),
        # Mode 1, the default of torchrun, can lose NCCL's flight-recorder dump (pytorch#121055).
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": given.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name} ${rank}] ",
        Env.ATTEMPT: str(attempt),
        Env.BEATS_DIR: str(heartbeats_dir),
        FAILURE_FILE_ENV: str(failure_file),
    }
