"""The agent's loop with real processes: one attempt after another, until one succeeds."""

import itertools
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddp_wire
from ddp_agent.agent import NEXT_ORDER_SECONDS, READER_ABSENT_SECONDS, UNREAD_SECONDS
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder, HungRank
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


def test_agent_exits_with_zero_after_a_successful_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        f"""
heartbeat("Starting")
wait_for_file({str(tmp_path / "join")!r})
heartbeat("Training", resumedFrom=4, progress={{"step": 5}})
wait_for_file({str(tmp_path / "end")!r})
heartbeat("Done", progress={{"step": 9}}, checkpoint={{"step": 8, "path": "/c", "at": 1.0}})
os._exit(0)  # At once: no time passes between the last heartbeat and the end.
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(lambda status: bool(status.ranks), lambda: node.touch("join"))
    node.when(phase("Training"), lambda: node.touch("end"))
    assert node.run() == ExitCode.OK
    assert node.phases() == ["1:Starting", "1:Training", "1:Succeeded"]
    last = node.status
    assert last.progress is not None
    assert last.progress.step == 9, "the agent reads the last heartbeat after the end"
    assert last.checkpoint is not None
    assert last.command[0] == "torchrun"


def test_agent_waits_after_a_failed_attempt_and_runs_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stub_torchrun(
        monkeypatch,
        """
if attempt == 1:
    fail(rank=0, exitCode=7, message="ValueError: no", traceback="T")
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Failed"), lambda: node.write_order("2"))
    assert node.run() == ExitCode.OK
    assert node.phases()[-1] == "2:Succeeded"
    failed = next(s for s in node.statuses if s.phase is AgentPhase.FAILED)
    assert failed.failure is not None
    assert (failed.failure.exit_code, failed.failure.message) == (7, "ValueError: no")
    assert node.status.failure is None, "a new attempt starts without the old failure"
    assert "attempt 1: rank 0 failed: ValueError: no" in caplog.text


HANGS = f"""
sys.path.append({str(Path(ddp_wire.__file__).parents[1])!r})
from pathlib import Path
from ddp_wire.activity import Activity, ActivityWriter
record = ActivityWriter(Path(os.environ["DDP_BEATS_DIR"]) / "0.activity")
record.step(41)
record.enter(Activity.FORWARD)
heartbeat("Training", step=41)
if attempt == 2:
    os._exit(0)
run_forever()
"""
"""A rank that stops making progress in the forward pass of update 42."""


@pytest.mark.slow
def test_agent_reports_ranks_that_hang_until_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, HANGS)
    limits = {"stepSeconds": 1, "startSeconds": 1}
    node = AgentHarness(tmp_path, env={Env.HANG: json.dumps(limits)})
    seen: list[HungRank] = []

    def order_next() -> None:
        seen.extend(node.status.hang or [])
        node.write_order("2")

    node.write_order("1")
    node.when(lambda status: status.hang is not None, order_next)
    assert node.run() == ExitCode.OK
    assert [(one.rank, one.step, one.activity) for one in seen] == [(0, 41, "forward")]
    assert node.phases()[-1] == "2:Succeeded"
    assert node.status.hang is None, "a new attempt starts without the old report"


@pytest.mark.slow
def test_agent_ends_a_hung_attempt_itself_if_no_order_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, HANGS)
    kinds = ("step", "start", "evaluation", "checkpoint", "data", "hook")
    names = [f"{kind}Seconds" for kind in kinds]
    node = AgentHarness(tmp_path, env={Env.HANG: json.dumps(dict.fromkeys(names, 1))})
    node.write_order("1")
    node.when(phase("Failed"), lambda: node.write_order("2"))
    assert node.run() == ExitCode.OK
    failed = next(s for s in node.statuses if s.phase is AgentPhase.FAILED)
    assert failed.failure is not None
    assert (failed.failure.rank, failed.failure.secondary) == (0, False)
    assert re.fullmatch(
        r"rank 0 has made no progress for \d+ s, in forward: it does not answer",
        failed.failure.message,
    )


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_agent_stopped_after_a_failed_attempt_exits_with_the_code_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stub_torchrun(monkeypatch, "fail(rank=0, exitCode=7)")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Failed"), lambda: node.stop(how))
    assert node.run() == 7
    assert node.status.phase is AgentPhase.FAILED


@pytest.mark.parametrize(
    ("read", "limit"),
    [
        ("the failure", NEXT_ORDER_SECONDS),
        ("the start", READER_ABSENT_SECONDS),
        ("nothing", UNREAD_SECONDS),
    ],
)
def test_agent_exits_if_no_order_follows_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, limit: float
) -> None:
    """The agent exits early if nobody has read the failure: perhaps no operator reaches it."""
    stub_torchrun(monkeypatch, "fail(signal='SIGKILL')")
    node = AgentHarness(tmp_path, tick_seconds=limit / 4)
    node.write_order("1")
    failed_at: list[float] = []

    def on_failure() -> None:
        failed_at.append(node.monotonic)
        if read == "the failure":
            node.writer.cell.record_read(node.status)

    if read == "the start":
        node.writer.cell.record_read(node.status)
    node.when(phase("Failed"), on_failure)
    assert node.run() == 128 + signal.SIGKILL
    assert limit <= node.monotonic - failed_at[0] <= 2 * limit


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_agent_lets_ranks_save_on_a_stop_order_and_reports_preemption(
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
heartbeat("Training")
run_forever()
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Training"), lambda: node.stop(how))
    assert node.run() == ExitCode.PREEMPTED
    assert node.phases()[-1] == "1:Preempted"
    assert saved.exists()


def test_agent_runs_an_attempt_that_the_operator_orders_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "heartbeat('Training')\nif attempt == 1: fail(rank=0)")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    order = AttemptOrder(job_uid="uid-1", attempt=2)
    node.when(phase("Failed"), lambda: node.accepted.append(node.orders.accept(order)))
    assert node.run() == ExitCode.OK
    assert node.accepted == [True]
    assert not node.orders.accept(AttemptOrder(job_uid="another", attempt=3))
    timeline = node.status.timeline
    assert timeline is not None
    assert timeline.noticed is not None
    assert timeline.cleared is not None
    assert timeline.noticed <= timeline.cleared <= timeline.ordered


@pytest.mark.parametrize(("grace", "usable"), [("60", 45.0), ("600", 585.0), ("4", 2.0)])
def test_agent_kills_ranks_whose_save_exceeds_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: str, usable: float
) -> None:
    """The pod's grace period counts, less the time that the agent needs for its report."""
    stub_torchrun(monkeypatch, "on_sigterm(lambda: None)\nheartbeat('Training')\nrun_forever()")
    tick = usable / 10
    node = AgentHarness(tmp_path, tick_seconds=tick, env={Env.GRACE_SECONDS.value: grace})
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(node.monotonic)
        node.write_order("stop")

    node.write_order("1")
    node.when(phase("Training"), stop)
    assert node.run() == ExitCode.PREEMPTED
    assert usable <= node.monotonic - stopped[0] <= usable + 4 * tick


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_agent_starts_nothing_if_it_is_stopped_before_the_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    started = tmp_path / "started"
    stub_torchrun(monkeypatch, f"open({str(started)!r}, 'w').close()")
    node = AgentHarness(tmp_path)
    if how == "stop":
        node.write_order("stop")
    else:
        node.orders.stop()
        node.write_order("1")
    assert node.run() == ExitCode.PREEMPTED
    assert not started.exists()


@pytest.mark.slow
def test_agent_reports_ranks_that_exit_with_the_preemption_code_as_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, f"fail(rank=0, exitCode={int(ExitCode.PREEMPTED)})")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    assert node.run() == ExitCode.PREEMPTED
    assert node.status.phase is AgentPhase.PREEMPTED


def test_newer_attempt_starts_after_all_processes_of_the_running_one_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 has a rank in a new session. Attempt 2 checks that this rank has ended."""
    pids = tmp_path / "pids"
    stub_torchrun(
        monkeypatch,
        f"""
if attempt == 1:
    rank = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                            start_new_session=True)
    open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{rank.pid}}")
    heartbeat("Training")
    run_forever()
for pid in open({str(pids)!r}).read().split():
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        continue
    sys.exit(9)
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Training"), lambda: node.write_order("2"))
    assert node.run() == ExitCode.OK
    assert node.phases()[-1] == "2:Succeeded"
    assert "1:Failed" not in node.phases()


def test_ranks_of_a_superseded_attempt_get_only_a_short_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        """
if attempt == 1:
    on_sigterm(lambda: None)
    heartbeat("Training")
    run_forever()
""",
    )
    node = AgentHarness(tmp_path, tick_seconds=0.1)
    node.write_order("1")
    node.when(phase("Training"), lambda: node.write_order("2"))
    assert node.run() == ExitCode.OK


def test_agent_runs_the_highest_order_and_skips_those_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "if attempt == 1:\n    fail(rank=0, exitCode=1)")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Failed"), lambda: node.write_order("5"))
    assert node.run() == ExitCode.OK
    assert {status.attempt for status in node.statuses} == {1, 5}


def test_ranks_of_a_command_without_heartbeats_count_as_training_once_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        """
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{log_dir}/run/attempt_0/0")
open(f"{log_dir}/run/attempt_0/0/stderr.log", "w").close()
run_forever()
""",
    )
    command = {Env.COMMAND.value: json.dumps(["true"])}
    node = AgentHarness(tmp_path, env={**command, Env.TASK.value: None})
    node.write_order("1")
    node.when(phase("Training"), node.orders.stop)
    assert node.run() == ExitCode.PREEMPTED


def test_ranks_of_a_task_count_as_training_only_by_their_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(
        monkeypatch,
        f"""
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{{log_dir}}/run/attempt_0/0")
open(f"{{log_dir}}/run/attempt_0/0/stderr.log", "w").close()
wait_for_file({str(tmp_path / "end")!r})
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    ticks = itertools.count()

    def after_some_ticks(_: AgentStatus) -> bool:
        return any(tmp_path.rglob("stderr.log")) and next(ticks) > 5

    node.when(after_some_ticks, lambda: node.touch("end"))
    assert node.run() == ExitCode.OK
    assert node.phases() == ["1:Starting", "1:Succeeded"]
