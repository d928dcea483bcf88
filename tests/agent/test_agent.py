"""The agent's loop over real processes: one attempt after the other, until one succeeds."""

import contextlib
import itertools
import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.agent import NEXT_ORDER_SECONDS, REMINDER_SECONDS, STOP_GRACE_SECONDS
from ddp_wire.contract import AgentPhase, AgentStatus, AttemptOrder, Env, ExitCode
from tests.agent.harness import Bench, phase, stub_torchrun
from tests.agent.support import orphanage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with orphanage():
        yield


def test_a_run_that_succeeds_ends_the_container_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        f"""
beat("Starting")
until({str(tmp_path / "join")!r})
beat("Training", resumedFrom=4, progress={{"step": 5}})
until({str(tmp_path / "end")!r})
beat("Done", progress={{"step": 9}}, checkpoint={{"step": 8, "path": "/c", "at": 1.0}})
os._exit(0)  # At once: there is no time between the last beat and the end.
""",
    )
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(lambda status: bool(status.ranks), lambda: bench.touch("join"))
    bench.when(phase("Training"), lambda: bench.touch("end"))
    assert bench.run() == ExitCode.OK
    assert bench.story() == ["1:Starting", "1:Training", "1:Succeeded"]
    last = bench.agent.status()
    assert last.progress is not None
    assert last.progress.step == 9, "the last beat is not lost"
    assert last.checkpoint is not None
    assert last.command[0] == "torchrun"


def test_a_failed_attempt_waits_for_the_next_and_that_one_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stub_torchrun(
        monkeypatch,
        """
if attempt == 1:
    fall(rank=0, exitCode=7, message="ValueError: no", traceback="T")
""",
    )
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(phase("Failed"), lambda: bench.order("2"))
    assert bench.run() == ExitCode.OK
    assert bench.story()[-1] == "2:Succeeded"
    failed = next(s for s in bench.said if s.phase is AgentPhase.FAILED)
    assert failed.failure is not None
    assert (failed.failure.exit_code, failed.failure.message) == (7, "ValueError: no")
    assert bench.agent.status().failure is None, "a new attempt has a clean slate"
    assert "attempt 1: rank 0 failed: ValueError: no" in capfd.readouterr().out


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_a_failed_attempt_that_is_not_followed_ends_the_container_as_its_rank_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stub_torchrun(monkeypatch, "fall(rank=0, exitCode=7)")
    bench = Bench(tmp_path)
    bench.order("1")
    end = bench.agent.terminate if how == "terminate" else lambda: bench.order("stop")
    bench.when(phase("Failed"), end)
    assert bench.run() == 7
    assert bench.agent.status().phase is AgentPhase.FAILED


def test_a_failed_attempt_that_nobody_follows_up_ends_the_container_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "fall(signal='SIGKILL')")
    bench = Bench(tmp_path, pace=NEXT_ORDER_SECONDS / 4)
    bench.order("1")
    assert bench.run() == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    "code", ["sys.exit(3)", "open(os.environ['DDP_FAILURE_FILE'], 'w').write('{'); sys.exit(3)"]
)
def test_a_torchrun_that_leaves_no_word_is_told_of_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    stub_torchrun(monkeypatch, code)
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(phase("Failed"), bench.agent.terminate)
    assert bench.run() == ExitCode.FAILED
    failure = bench.agent.status().failure
    assert failure is not None
    assert failure.message == "torchrun ended with exit code 3 and left no word"


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_an_order_to_stop_lets_the_ranks_save_and_counts_as_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    saved = tmp_path / "saved"
    stub_torchrun(
        monkeypatch,
        f"""
def save():
    time.sleep(0.05)
    open({str(saved)!r}, "w").close()
    sys.exit(0)
on_sigterm(save)
beat("Training")
for_ever()
""",
    )
    bench = Bench(tmp_path)
    bench.order("1")
    end = bench.agent.terminate if how == "terminate" else lambda: bench.order("stop")
    bench.when(phase("Training"), end)
    assert bench.run() == ExitCode.PREEMPTED
    assert bench.story()[-1] == "1:Preempted"
    assert saved.exists()


def test_a_rank_that_torchrun_has_not_told_to_stop_is_told_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun loses a signal that comes while it starts its ranks."""
    rank = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(85)); time.sleep(60)"
    stub_torchrun(
        monkeypatch,
        f"""
on_sigterm(lambda: None)
rank = subprocess.Popen([sys.executable, "-S", "-c", {rank!r}])
beat("Training")
code = rank.wait()
open({str(tmp_path / "code")!r}, "w").write(str(code))
""",
    )
    bench = Bench(tmp_path, pace=REMINDER_SECONDS / 40)
    bench.order("1")
    bench.when(phase("Training"), lambda: bench.order("stop"))
    assert bench.run() == ExitCode.PREEMPTED
    assert (tmp_path / "code").read_text() in {"85", "-15"}


def test_an_attempt_that_the_operator_orders_itself_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "beat('Training')\nif attempt == 1: fall(rank=0)")
    bench = Bench(tmp_path)
    bench.order("1")
    order = AttemptOrder(job_uid="uid-1", attempt=2)
    bench.when(phase("Failed"), lambda: bench.told.append(bench.agent.order(order)))
    assert bench.run() == ExitCode.OK
    assert bench.told == [True]
    assert not bench.agent.order(AttemptOrder(job_uid="another", attempt=3))
    timeline = bench.agent.status().timeline
    assert timeline is not None
    assert timeline.noticed is not None
    assert timeline.cleared is not None
    assert timeline.noticed <= timeline.cleared <= timeline.ordered


def test_ranks_that_save_for_too_long_are_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "on_sigterm(lambda: None)\nbeat('Training')\nfor_ever()")
    bench = Bench(tmp_path, pace=STOP_GRACE_SECONDS / 10)
    bench.order("1")
    bench.when(phase("Training"), lambda: bench.order("stop"))
    assert bench.run() == ExitCode.PREEMPTED


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_an_order_to_stop_before_the_first_attempt_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    started = tmp_path / "started"
    stub_torchrun(monkeypatch, f"open({str(started)!r}, 'w').close()")
    bench = Bench(tmp_path)
    if how == "stop":
        bench.order("stop")
    else:
        bench.agent.terminate()
        bench.order("1")
    assert bench.run() == ExitCode.PREEMPTED
    assert not started.exists()


def test_ranks_that_stop_by_themselves_on_request_are_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, f"fall(rank=0, exitCode={int(ExitCode.PREEMPTED)})")
    bench = Bench(tmp_path)
    bench.order("1")
    assert bench.run() == ExitCode.PREEMPTED
    assert bench.agent.status().phase is AgentPhase.PREEMPTED


def test_a_newer_attempt_supersedes_one_that_runs_and_no_rank_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 has a rank in a session of its own; attempt 2 looks whether it is gone."""
    pids = tmp_path / "pids"
    stub_torchrun(
        monkeypatch,
        f"""
if attempt == 1:
    rank = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                            start_new_session=True)
    open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{rank.pid}}")
    beat("Training")
    for_ever()
for pid in open({str(pids)!r}).read().split():
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        continue
    sys.exit(9)
""",
    )
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(phase("Training"), lambda: bench.order("2"))
    assert bench.run() == ExitCode.OK
    assert bench.story()[-1] == "2:Succeeded"
    assert "1:Failed" not in bench.story()


def test_an_attempt_that_is_superseded_has_a_short_grace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        """
if attempt == 1:
    on_sigterm(lambda: None)
    beat("Training")
    for_ever()
""",
    )
    bench = Bench(tmp_path, pace=0.1)
    bench.order("1")
    bench.when(phase("Training"), lambda: bench.order("2"))
    assert bench.run() == ExitCode.OK


def test_the_highest_order_is_run_and_those_in_between_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "if attempt == 1:\n    fall(rank=0, exitCode=1)")
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(phase("Failed"), lambda: bench.order("5"))
    assert bench.run() == ExitCode.OK
    assert {status.attempt for status in bench.said} == {1, 5}


def test_ranks_that_report_nothing_count_as_training_once_they_are_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        """
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{log_dir}/run/attempt_0/0")
open(f"{log_dir}/run/attempt_0/0/stderr.log", "w").close()
for_ever()
""",
    )
    command = {Env.COMMAND.value: json.dumps(["./train"])}
    bench = Bench(tmp_path, env={**command, Env.TASK.value: None})
    bench.order("1")
    bench.when(phase("Training"), bench.agent.terminate)
    assert bench.run() == ExitCode.PREEMPTED


def test_ranks_of_a_task_count_as_training_only_by_their_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        f"""
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{{log_dir}}/run/attempt_0/0")
open(f"{{log_dir}}/run/attempt_0/0/stderr.log", "w").close()
until({str(tmp_path / "end")!r})
""",
    )
    bench = Bench(tmp_path)
    bench.order("1")
    looks = itertools.count()

    def after_some_looks(_: AgentStatus) -> bool:
        return any(tmp_path.rglob("stderr.log")) and next(looks) > 5

    bench.when(after_some_looks, lambda: bench.touch("end"))
    assert bench.run() == ExitCode.OK
    assert bench.story() == ["1:Starting", "1:Succeeded"]


# --- A node that is not the first waits for the store ------------------------------------------


@pytest.fixture
def stores() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ports in a row that nobody listens on yet: those of attempts 1 and 2."""
    with contextlib.ExitStack() as held:
        while True:
            first, second = (held.enter_context(socket.socket()) for _ in range(2))
            first.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
                break
        yield first, second


@pytest.fixture
def store(stores: tuple[socket.socket, socket.socket]) -> socket.socket:
    """A port that nobody listens on yet."""
    return stores[0]


def second_node(home: Path, store: socket.socket) -> Bench:
    """A bench whose attempt 1 rendezvouses at the store's port."""
    port = store.getsockname()[1]
    return Bench(
        home,
        env={
            Env.NODE_INDEX.value: "1",
            Env.NODES.value: "2",
            Env.RENDEZVOUS_HOST.value: "127.0.0.1",
            Env.RENDEZVOUS_PORT_BASE.value: str(port - 1),
        },
    )


def test_a_node_starts_when_the_store_of_node_0_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket
) -> None:
    stub_torchrun(monkeypatch, "")
    bench = second_node(tmp_path, store)
    bench.order("1")
    bench.when(phase("Waiting"), store.listen)
    assert bench.run() == ExitCode.OK
    assert bench.story() == ["1:Waiting", "1:Starting", "1:Succeeded"]


def test_a_node_that_waits_for_the_store_goes_on_to_a_newer_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: tuple[socket.socket, socket.socket]
) -> None:
    stub_torchrun(monkeypatch, "")
    first, second = stores
    bench = second_node(tmp_path, first)
    bench.order("1")
    second.listen()
    bench.when(phase("Waiting"), lambda: bench.order("2"))
    assert bench.run() == ExitCode.OK
    assert {s.attempt for s in bench.said if s.phase is AgentPhase.SUCCEEDED} == {2}


def test_a_node_that_waits_for_the_store_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket
) -> None:
    stub_torchrun(monkeypatch, "")
    bench = second_node(tmp_path, store)
    bench.order("1")
    bench.when(phase("Waiting"), lambda: bench.order("stop"))
    assert bench.run() == ExitCode.PREEMPTED
    assert bench.story() == ["1:Waiting", "1:Preempted"]
