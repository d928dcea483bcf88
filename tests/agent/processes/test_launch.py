"""The torchrun command line of an attempt and the environment of its ranks."""

import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_agent.processes.launch import RENDEZVOUS_KEY_ENV, Launch, prepare
from ddp_wire.contract import RENDEZVOUS_PORT_COUNT, Env, rendezvous_port
from tests.agent.support import config, members

GOLDEN = Path(__file__).parent


def launch(
    home: Path,
    attempt: int = 1,
    env: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> Launch:
    """Return the launch for the operator's variables, changed by `env`, in an environment."""
    changes: dict[str, str | None] = dict(env or {})
    if Env.COMMAND in changes:
        changes[Env.TASK] = None
    made = config(home, **changes)
    return prepare(made, members(made, attempt), home / "scratch", given or {})


def line(home: Path, command: list[str]) -> list[str]:
    """Return the arguments after those of torchrun itself."""
    arguments = launch(home, env={Env.COMMAND: json.dumps(command)}).arguments
    return arguments[arguments.index("--role=rank") + 1 :]


def test_command_line_equals_the_golden_file(tmp_path: Path) -> None:
    found = launch(tmp_path, 3).line
    shown = "\n".join(found).replace(str(tmp_path), "HOME") + "\n"
    assert shown == (GOLDEN / "golden.txt").read_text(encoding="utf-8")


def test_only_node_0_hosts_the_store(tmp_path: Path) -> None:
    first = launch(tmp_path, env={Env.NODE_INDEX: "0"}).line
    second = launch(tmp_path, env={Env.NODE_INDEX: "1"}).line
    assert "--rdzv-conf=is_host=true,join_timeout=600,last_call_timeout=1" in first
    assert "--rdzv-conf=is_host=false,join_timeout=600,last_call_timeout=1" in second


def test_each_attempt_has_its_own_rendezvous(tmp_path: Path) -> None:
    first, second = (set(launch(tmp_path, attempt).line) for attempt in (1, 2))
    assert "--rdzv-id=uid-1-1" in first - second
    assert "--rdzv-id=uid-1-2" in second - first
    assert "--rdzv-endpoint=digits-0.digits:29401" in first - second


def test_rendezvous_id_of_a_job_with_a_secret_cannot_be_guessed(tmp_path: Path) -> None:
    made = [launch(tmp_path, 1, {Env.JOB_SECRET: secret}) for secret in ("a" * 32, "b" * 32)]
    ids = [next(word for word in one.line if word.startswith("--rdzv-id=")) for one in made]
    assert all(re.fullmatch(r"--rdzv-id=uid-1-1-[0-9a-f]{32}", one) for one in ids)
    keys = [one.environment[RENDEZVOUS_KEY_ENV] for one in made]
    keys += [launch(tmp_path, 2, {Env.JOB_SECRET: "a" * 32}).environment[RENDEZVOUS_KEY_ENV]]
    assert len(set(ids)) == 2
    assert len(set(keys)) == 3
    for one, key in zip(made, keys, strict=False):
        assert not [word for word in one.command if key in word], "the process list shows the key"


def test_environment_variables_of_torchrun_do_not_override_its_arguments(
    tmp_path: Path,
) -> None:
    """torchrun reads a default for each of its arguments from the environment."""
    names = {f"PET_{action.dest.upper()}": "1" for action in get_args_parser()._actions}
    assert "PET_STANDALONE" in names
    found = launch(tmp_path, given=names | {"PETS": "2"}).environment
    assert found["PETS"] == "2"
    assert not names.keys() & found.keys()


def test_launch_of_a_job_without_a_secret_sets_no_rendezvous_key(tmp_path: Path) -> None:
    """The peers are pods of an older operator, which could not use a key."""
    assert launch(tmp_path).environment[RENDEZVOUS_KEY_ENV] == ""


def test_consecutive_attempts_always_have_different_ports() -> None:
    ports = [rendezvous_port(29400, attempt) for attempt in range(1, 500)]
    assert all(a != b for a, b in itertools.pairwise(ports))
    assert set(ports) == set(range(29400, 29400 + RENDEZVOUS_PORT_COUNT))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["python", "/app/train.py", "--lr=1"], ["/app/train.py", "--lr=1"]),
        (["python3", "train.py"], ["train.py"]),
        (["python", "-m", "my_package.train", "-x"], ["-m", "my_package.train", "-x"]),
        (["/app/train.sh", "a b"], ["--no-python", "/app/train.sh", "a b"]),
        (["bash", "-c", "echo hi"], ["--no-python", "bash", "-c", "echo hi"]),
        (["python"], ["--no-python", "python"]),
        (["python", "-u", "train.py"], ["--no-python", sys.executable, "-u", "train.py"]),
        (["python3", "-c", "print(1)"], ["--no-python", sys.executable, "-c", "print(1)"]),
    ],
    ids=lambda v: " ".join(v) if v and v[0] in {"python", "python3"} else None,
)
def test_torchrun_gets_the_entrypoint_of_the_command(
    tmp_path: Path, command: list[str], arguments: list[str]
) -> None:
    assert line(tmp_path, command) == arguments


def test_task_runs_in_the_bundled_trainer(tmp_path: Path) -> None:
    assert launch(tmp_path).line[-3:] == ["-m", "ddp_trainer", "train"]


def test_command_equals_the_logged_command_line_except_for_the_wrapper(tmp_path: Path) -> None:
    found = launch(tmp_path)
    assert found.command[1:5] == ["-u", "-P", "-m", "ddp_agent.launcher.torchrun"]
    assert found.command[5:] == found.line[1:] == found.arguments


def test_each_attempt_has_its_own_directories(tmp_path: Path) -> None:
    first, second = launch(tmp_path, 1), launch(tmp_path, 2)
    assert first.heartbeats_dir.is_dir()
    assert second.log_dir.is_dir()
    assert first.heartbeats_dir != second.heartbeats_dir
    assert first.log_dir != second.log_dir
    assert first.failure_file != second.failure_file


def test_logs_are_copied_to_the_shared_volume_if_there_is_one(tmp_path: Path) -> None:
    shared = tmp_path / "checkpoints"
    env = {Env.CHECKPOINT_DIR.value: str(shared), Env.NODE_INDEX.value: "1"}
    found = launch(tmp_path, 3, env)
    assert found.log_copy_dir == shared / "logs" / "attempt-3" / "node-1"
    assert found.log_dir.is_relative_to(tmp_path / "scratch"), "a full volume must not stop a rank"
    assert launch(tmp_path, 3).log_copy_dir is None


def test_ranks_get_their_attempt_and_the_paths_for_heartbeats_and_failures(tmp_path: Path) -> None:
    found = launch(tmp_path, 4)
    env = found.environment
    assert env[Env.ATTEMPT] == "4"
    assert env[Env.BEATS_DIR] == str(found.heartbeats_dir)
    assert env[FAILURE_FILE_ENV] == str(found.failure_file)
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_container_environment_reaches_the_ranks(tmp_path: Path) -> None:
    assert launch(tmp_path, given={"LR": "0.1"}).environment["LR"] == "0.1"


@pytest.mark.parametrize(
    ("given", "threads"),
    [({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7")],
    ids=["by the quota", "set"],
)
def test_thread_count_fits_the_cpu_quota_unless_the_job_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], threads: str
) -> None:
    monkeypatch.setattr("ddp_agent.processes.launch.cpu_count", lambda: 6)
    env = launch(tmp_path, env={Env.PROCS_PER_NODE: "2"}, given=given).environment
    assert env["OMP_NUM_THREADS"] == threads


def test_nccl_error_handling_of_the_job_takes_precedence(tmp_path: Path) -> None:
    given = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    env = launch(tmp_path, given=given).environment
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
