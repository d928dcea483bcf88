"""Tests that a rank answers an inspection while its training thread waits or loops."""

import _thread
import ctypes
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.observe.inspector import inspect
from ddp_wire.activity import ANSWER_SUFFIX, QUESTION_SUFFIX, Activity, read_activities
from ddp_wire.messages import RankInspection
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


@pytest.mark.slow
def test_inspection_of_a_waiting_rank_shows_the_collective(
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


class Loop:
    """A function for a thread, which runs until `end` is set."""

    def __init__(self) -> None:
        self.started, self.end = threading.Event(), threading.Event()

    def loop_in_user_code(self) -> None:
        self.started.set()
        while not self.end.is_set():
            pass

    def wait_in_a_library(self, name: bytes) -> None:
        libc = ctypes.PyDLL(None)
        libc.pthread_setname_np(ctypes.c_ulong(_thread.get_ident()), name)
        self.started.set()
        self.end.wait()


def start(begin: Callable[[], object], started: threading.Event) -> None:
    begin()
    assert started.wait(10)


@pytest.fixture
def training() -> Iterator[int]:
    """Run a loop in a thread, as the training thread."""
    loop = Loop()
    thread = threading.Thread(target=loop.loop_in_user_code)
    start(thread.start, loop.started)
    assert thread.ident is not None
    yield thread.ident
    loop.end.set()
    thread.join()


def test_thread_in_a_loop_does_not_count_as_waiting_in_a_collective(training: int) -> None:
    found = inspect(training)
    assert not found.waits
    assert "in loop_in_user_code" in found.stack
    assert (found.number, found.collectives) == (None, []), "there is no process group"


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"pt_autograd_0", "in wait_in_a_library"), (b"library", "in loop_in_user_code")],
)
def test_only_an_autograd_thread_counts_as_running_a_hook(
    training: int, name: bytes, shown: str
) -> None:
    """With CUDA, hooks of the backward pass run in a thread with such a name."""
    other = Loop()
    start(lambda: _thread.start_new_thread(other.wait_in_a_library, (name,)), other.started)
    try:
        assert shown in inspect(training).stack
    finally:
        other.end.set()


@pytest.fixture
def answers() -> Iterator[list[bool]]:
    """Inspection results during each compilation, and during each run."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


@pytest.mark.slow
def test_inspection_says_that_a_thread_compiles_code_for_a_new_shape(
    answers: list[bool],
) -> None:
    def answer() -> None:
        answers.append(inspect(_thread.get_ident()).compiles)

    def compile_graph(graph: Any, _example: Any) -> Any:
        answer()
        return graph

    def compute(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        run_uncompiled()
        return x + 1

    run_uncompiled = torch._dynamo.disable(answer)
    compute = torch.compile(compute, backend=compile_graph, dynamic=False)
    compute(torch.ones(2))
    assert sorted(answers) == [False, True]
    compute(torch.ones(2))
    assert sorted(answers) == [False, False, True]
    compute(torch.ones(3))
    assert sorted(answers) == [False, False, False, True, True]


@pytest.mark.slow
def test_inspection_says_that_the_backward_pass_compiles(answers: list[bool]) -> None:
    """Inductor compiles the backward pass when it runs for the first time, outside of dynamo."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 (imports for seconds)

    def compile_inner(graph: Any, _example: Any, **_settings: Any) -> Any:
        answers.append(inspect(_thread.get_ident()).compiles)

        def run(inputs: list[Any]) -> Any:
            answers.append(inspect(_thread.get_ident()).compiles)
            return graph(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(graph: Any, example: Any) -> Any:
        return compile_fx(graph, example, inner_compile=compile_inner)

    loss = torch.compile(lambda x: x.sin().sum(), backend=backend)
    result = loss(torch.ones(2, requires_grad=True))
    assert answers == [True, False]
    result.backward()
    assert answers == [True, False, True, False]
    loss(torch.ones(2, requires_grad=True)).backward()
    assert answers == [True, False, True, False, False, False]
