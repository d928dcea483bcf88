"""Tests of the warm standby with real torch: forked ranks report failures as new processes do."""

import json
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path

import pytest

from ddp_agent import __main__ as entry_point
from ddp_agent import main as agent_main
from ddp_agent.processes import warm
from ddp_agent.processes.launch import SHUTDOWN_ENV, Launch, can_be_forked, prepare
from ddp_agent.processes.supervise import WarmTree
from ddp_agent.processes.warm import Standby, StandbyLostError
from ddp_wire.contract import Env
from ddp_wire.messages import Failure
from ddp_wire.processes import descendants
from tests.agent.support import config, environment, members, wait_until
from tests.harness.ports import free_port
from tests.harness.resolver import with_lasting_lock

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does"),
    pytest.mark.usefixtures("adopting_standby"),
]


def prepared(home: Path, script: str, attempt: int = 1) -> Launch:
    """Return an attempt of one node with two ranks that run a script."""
    file = home / "train.py"
    file.write_text(textwrap.dedent(script), encoding="utf-8")
    command = json.dumps(["python", str(file), "--flag"])
    one_node = {
        Env.NODES: "1",
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.POD_ADDRESS: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE: str(free_port() - attempt),
        Env.TASK: None,
        Env.COMMAND: command,
        Env.JOB_SECRET: "e" * 32,
    }
    given = environment(home, **one_node)
    made = config(home, **one_node)
    return prepare(made, members(made, attempt), home, {**os.environ, **given})


def start(standby: Standby, launch: Launch) -> WarmTree:
    return WarmTree(standby, launch.arguments, launch.environment)


def exit_code(tree: WarmTree) -> int:
    wait_until(lambda: tree.poll() is not None, "the attempt ends")
    assert tree.returncode is not None
    return tree.returncode


GANG = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
with open(os.path.dirname(__file__) + f"/rank-{dist.get_rank()}", "w") as file:
    file.write(f"{__name__} {sys.argv[1:]} {int(total)} {os.environ['DDP_ATTEMPT']}")
    file.write(" knows the key" if "DDP_RENDEZVOUS_KEY" in os.environ else "")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [1, 2])
def test_ranks_are_forked_with_the_environment_of_their_attempt(
    standby: Standby, tmp_path: Path, attempt: int
) -> None:
    assert exit_code(start(standby, prepared(tmp_path, GANG, attempt))) == 0
    for rank in range(2):
        written = (tmp_path / f"rank-{rank}").read_text()
        assert written == f"__main__ ['--flag'] 2 {attempt}"


@pytest.mark.slow
def test_ranks_start_although_the_store_resolves_addresses_during_the_fork(
    tmp_path: Path,
) -> None:
    """A process that hosts the store would fork ranks that wait forever for the resolver."""
    given = environment(tmp_path) | with_lasting_lock(tmp_path)
    made = Standby(warm.standby_environment({**os.environ, **given}))
    try:
        assert made.wait_ready(60)
        launch = prepared(tmp_path, GANG)
        assert exit_code(start(made, launch)) == 0
    finally:
        made.close()
        os.waitpid(made.pid, 0)


@pytest.mark.slow
def test_taken_port_of_the_rendezvous_store_is_reported(standby: Standby, tmp_path: Path) -> None:
    launch = prepared(tmp_path, "")
    (endpoint,) = [one for one in launch.arguments if one.startswith("--rdzv-endpoint=")]
    with socket.create_server(("", int(endpoint.rpartition(":")[2]))):
        assert exit_code(start(standby, launch)) == 1
    found = Failure.model_validate_json(launch.failure_file.read_bytes())
    assert "EADDRINUSE" in found.message


def test_store_and_ranks_end_with_a_killed_launcher(standby: Standby, tmp_path: Path) -> None:
    before = descendants(os.getpid())
    tree = start(standby, prepared(tmp_path, "import time; time.sleep(600)"))
    wait_until(lambda: len(descendants(tree.pid)) >= 3, "the ranks start")
    os.kill(tree.pid, signal.SIGKILL)
    wait_until(lambda: descendants(os.getpid()) == before, "all of its forks end")
    assert exit_code(tree) == -signal.SIGKILL


@pytest.mark.slow
def test_output_of_the_ranks_is_logged_by_rank(standby: Standby, tmp_path: Path) -> None:
    launch = prepared(tmp_path, "import os; print('hello of', os.environ['RANK'])")
    assert exit_code(start(standby, launch)) == 0
    for rank in range(2):
        (log,) = launch.log_dir.glob(f"*/attempt_0/{rank}/stdout.log")
        assert f"hello of {rank}" in log.read_text()


@pytest.mark.slow
def test_fork_collects_garbage_but_ignores_the_imported_objects(
    standby: Standby, tmp_path: Path
) -> None:
    script = "import gc; print('collects', gc.isenabled(), gc.get_freeze_count() > 100_000)"
    launch = prepared(tmp_path, script)
    assert exit_code(start(standby, launch)) == 0
    (log,) = launch.log_dir.glob("*/attempt_0/0/stdout.log")
    assert "collects True True" in log.read_text()


@pytest.mark.slow
def test_kernel_kills_ranks_before_the_standby_when_memory_runs_out(
    standby: Standby, tmp_path: Path
) -> None:
    own = int(Path(f"/proc/{standby.pid}/oom_score_adj").read_text())
    script = "print('score', open('/proc/self/oom_score_adj').read())"
    launch = prepared(tmp_path, script)
    assert exit_code(start(standby, launch)) == 0
    (log,) = launch.log_dir.glob("*/attempt_0/0/stdout.log")
    assert f"score {min(1000, own + 300)}\n" in log.read_text()


def test_standby_starts_before_the_agents_imports_if_it_is_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = object()
    monkeypatch.setattr(warm, "Standby", lambda environment: early if environment else None)
    assert warm.start_standby_early({Env.STANDBY: "true"}) is early
    assert warm.start_standby_early({Env.STANDBY: "false"}) is None
    assert warm.start_standby_early({}) is None
    taken: list[object] = []
    monkeypatch.setenv(Env.STANDBY, "true")
    monkeypatch.setenv(Env.JOB_SECRET, "e" * 32)
    monkeypatch.setattr(agent_main, "main", lambda *given: taken.extend(given))
    entry_point.main()
    assert taken == [early, {Env.JOB_SECRET: "e" * 32}]


FAILURES = {
    "exception": ("raise ValueError('no data')", 1, None, "ValueError: no data"),
    "exit code": ("raise SystemExit(85)", 85, None, ""),
    "signal": ("os.kill(os.getpid(), 9)", None, "SIGKILL", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "end"), [(how, end) for how, *end in FAILURES.values()], ids=FAILURES.keys()
)
def test_rank_that_failed_first_is_reported_although_its_peer_failed_with_it(
    standby: Standby,
    tmp_path: Path,
    how: str,
    end: list[int | str | None],
) -> None:
    script = f"""
    import os
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        {how}
    dist.barrier()
    """
    launch = prepared(tmp_path, script)
    assert exit_code(start(standby, launch)) == 1
    found = Failure.model_validate_json(launch.failure_file.read_bytes())
    assert found.rank == 1
    assert [found.exit_code, found.signal, found.message] == end
    assert not found.secondary
    assert "runpy" not in found.traceback


@pytest.mark.slow
def test_kill_of_an_attempt_ends_its_ranks_but_not_the_standby(
    standby: Standby, tmp_path: Path
) -> None:
    tree = start(standby, prepared(tmp_path, "import time; time.sleep(600)"))
    # Two ranks, and the host of the store.
    wait_until(lambda: len(descendants(tree.pid)) >= 3, "the ranks start")
    ranks = descendants(tree.pid)
    assert tree.kill()
    assert not set(ranks) & set(descendants(os.getpid()))
    assert standby.pid in descendants(os.getpid())
    assert exit_code(start(standby, prepared(tmp_path, "print('again')", 2))) == 0


def test_stop_signal_reaches_the_ranks(standby: Standby, tmp_path: Path) -> None:
    script = """
    import os, pathlib, signal, sys, time
    here = pathlib.Path(__file__).parent
    def save(*_):
        (here / ("saved-" + os.environ["RANK"])).touch()
        sys.exit(85)
    signal.signal(signal.SIGTERM, save)
    (here / ("started-" + os.environ["RANK"])).touch()
    time.sleep(600)
    """
    tree = start(standby, prepared(tmp_path, script))
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the ranks start")
    tree.signal(signal.SIGTERM)
    assert exit_code(tree) != 0
    assert len(list(tmp_path.glob("saved-*"))) == 2


@pytest.mark.slow
def test_ranks_that_do_not_stop_are_killed_after_the_grace_period_of_the_agent(
    standby: Standby, tmp_path: Path
) -> None:
    """torchrun's own limit is 30 s, longer than this test waits."""
    script = """
    import os, pathlib, signal, time
    signal.signal(signal.SIGTERM, lambda *_: None)
    (pathlib.Path(__file__).parent / ("started-" + os.environ["RANK"])).touch()
    while True:
        time.sleep(1)
    """
    launch = prepared(tmp_path, script)
    launch.environment[SHUTDOWN_ENV] = "1"
    tree = start(standby, launch)
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the ranks start")
    tree.signal(signal.SIGTERM)
    assert exit_code(tree) == 128 + signal.SIGTERM


def test_fork_of_a_standby_that_has_ended_raises_an_error(tmp_path: Path) -> None:
    lost = Standby({"PATH": os.defpath, "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    with pytest.raises(StandbyLostError):
        lost.wait_ready(10)
    assert not lost.is_alive()
    with pytest.raises(StandbyLostError):
        start(lost, prepared(tmp_path, ""))
    lost.close()
    os.waitpid(lost.pid, 0)


@pytest.mark.slow
def test_forked_rank_has_the_compiler_imported(tmp_path: Path, standby: Standby) -> None:
    script = "import sys; print('compiler', 'torch._dynamo.utils' in sys.modules)"
    launch = prepared(tmp_path, script, 1)
    assert exit_code(start(standby, launch)) == 0
    (log,) = launch.log_dir.glob("*/attempt_0/0/stdout.log")
    assert "compiler True" in log.read_text()


def test_only_python_scripts_and_modules_can_be_forked(tmp_path: Path) -> None:
    def forkable(*command: str) -> bool:
        made = config(tmp_path, **{Env.TASK: None, Env.COMMAND: json.dumps(command)})
        return can_be_forked(made)

    assert forkable("python", "train.py")
    assert forkable("python", "-m", "my_package.train")
    assert not forkable("python", "-c", "print(1)")
    assert not forkable("bash", "-c", "python train.py")
    assert can_be_forked(config(tmp_path))
