"""A rank answers what it does, while its training thread waits or loops."""

import signal
import socket
import threading
import time
from pathlib import Path

from ddp_trainer.observe.inspector import inspect
from ddp_wire.activity import ANSWER_SUFFIX, QUESTION_SUFFIX, Activity, read_activities
from ddp_wire.contract import RankInspection
from tests.trainer.rank_processes import Launcher

TASK = ["--task=sample_tasks:build", "--global_batch=6", "--epochs=100000"]
TASK += ["--task.eval_samples=0"]


def ask(folder: Path, rank: int) -> RankInspection:
    answer = folder / f"{rank}{ANSWER_SUFFIX}"
    answer.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"?", str(folder / f"{rank}{QUESTION_SUFFIX}"))
    deadline = time.monotonic() + 20
    while not answer.exists():
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.01)
    return RankInspection.model_validate_json(answer.read_text())


def test_rank_that_waits_for_a_stopped_one_shows_the_collective(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = launcher.train(*TASK, world=2, DDP_BEATS_DIR=str(tmp_path), DDP_ATTEMPT="1")
    gang.wait_until(lambda: [r.step > 5 for r in read_activities(tmp_path).values()] == [True] * 2)
    gang.signal(1, signal.SIGSTOP)
    step = -1

    def stands() -> bool:
        nonlocal step
        before, step = step, read_activities(tmp_path)[0].step
        time.sleep(0.5)
        return before == step == read_activities(tmp_path)[0].step

    gang.wait_until(stands)
    found = ask(tmp_path, 0)
    assert found.waits, found.stack
    assert found.number
    assert found.collectives[-1].startswith("all_reduce of [")
    assert read_activities(tmp_path)[0].activity in {Activity.BACKWARD, Activity.EXCHANGE}
    gang.signal(1, signal.SIGCONT)
    gang.wait_until(lambda: read_activities(tmp_path)[0].step > step)


def test_thread_that_loops_does_not_wait() -> None:
    end, started = threading.Event(), threading.Event()

    def loop_in_user_code() -> None:
        started.set()
        while not end.is_set():
            pass

    thread = threading.Thread(target=loop_in_user_code)
    thread.start()
    assert started.wait(10)
    assert thread.ident is not None
    try:
        found = inspect(thread.ident)
    finally:
        end.set()
        thread.join()
    assert not found.waits
    assert "in loop_in_user_code" in found.stack
    assert (found.number, found.collectives) == (None, []), "there is no process group"
