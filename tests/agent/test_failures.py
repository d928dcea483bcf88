"""Failures from exit codes, tracebacks and logs of ranks."""

import signal
from pathlib import Path
from typing import Any

import pytest

from ddp_agent.failures import (
    describe,
    exit_code,
    from_exception,
    signal_name,
    traceback_in_logs,
)
from ddp_wire.contract import ExitCode
from ddp_wire.messages import Failure

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no such flower"""


def described(text: str = "", returncode: int = 1) -> Failure:
    return describe(attempt=2, rank=3, returncode=returncode, text=text, at=5.0)


def test_exception_is_reported_by_its_last_line_and_its_traceback() -> None:
    found = described(TRACEBACK)
    assert found == Failure(
        attempt=2,
        at=5.0,
        rank=3,
        exit_code=1,
        message="ValueError: no such flower",
        traceback=TRACEBACK,
    )


PYDANTIC = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    Flower(name=1)
pydantic_core._pydantic_core.ValidationError: 1 validation error for Flower
name
  Input should be a valid string [type=string_type, input_value=1, input_type=int]
    For further information visit https://errors.pydantic.dev/2.13/v/string_type"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  |     raise ExceptionGroup("two", [ValueError("no flower")])
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: no flower
    +------------------------------------"""
WORKER = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    next(batches)
RuntimeError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    return self.flowers[index]
KeyError: 'rose'"""
NOTES = f"{TRACEBACK}\nin sample 4\n/usr/lib/python3/resource_tracker.py: UserWarning: leaked"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PYDANTIC, "pydantic_core._pydantic_core.ValidationError: 1 validation error for Flower"),
        (GROUP, "ExceptionGroup: two (1 sub-exception)"),
        (WORKER, "KeyError: 'rose'"),
        (NOTES, "ValueError: no such flower"),
    ],
    ids=["several lines", "group", "data worker", "notes and other output"],
)
def test_failure_is_stated_by_the_first_line_of_the_exception(text: str, message: str) -> None:
    found = described(text)
    assert (found.message, found.traceback) == (message, text)


def test_rank_prefix_of_each_line_is_removed() -> None:
    text = "\n".join(f"[rank3]: {line}" for line in TRACEBACK.splitlines())
    assert described(text).traceback == TRACEBACK


def test_long_traceback_keeps_its_end() -> None:
    found = described("\n".join(f"line {i}" for i in range(100)))
    assert found.traceback.splitlines() == [f"line {i}" for i in range(80, 100)]
    huge = described("x" * 50_000)
    assert (len(huge.message), len(huge.traceback)) == (1024, 4096)


def test_failure_by_a_signal_does_not_quote_the_last_line_of_the_log() -> None:
    found = described("epoch 3, loss 0.1", returncode=-signal.SIGKILL)
    assert (found.signal, found.exit_code, found.message, found.traceback) == (
        "SIGKILL",
        None,
        "",
        "",
    )
    assert not found.secondary


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_rank_stopped_on_request_is_a_secondary_failure(number: signal.Signals) -> None:
    assert described(returncode=-number).secondary


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [..] Connection closed by peer [10.0.0.2]:4711",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: NCCL communicator was aborted on rank 1",
        "ncclRemoteError: remote process exited or there was a network error",
        "torch.distributed.DistStoreError: Socket Timeout",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: connect() failed: Connection refused",
        "RendezvousConnectionError: The connection to the C10d store has failed.",
        "RendezvousTimeoutError",
        "RendezvousClosedError",
    ],
    ids=lambda text: text.partition(":")[0],
)
def test_rank_that_lost_a_peer_is_a_secondary_failure(text: str) -> None:
    assert described(f"Traceback\n{text}").secondary


COLLECTIVE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    dist.all_reduce(x)
  File "/venv/lib/python3.13/site-packages/torch/distributed/distributed_c10d.py", line 9, in wait
    work.wait()
{error}"""


def test_unknown_error_of_a_collective_is_a_secondary_failure() -> None:
    for error in ("RuntimeError: new in torch 9", "torch.distributed.DistBackendError: new"):
        assert described(COLLECTIVE.format(error=error)).secondary
    for error in ("ValueError: Tensors must be contiguous", "TypeError: x"):
        assert not described(COLLECTIVE.format(error=error)).secondary
    pair = '  File "t.py", line 1\nRuntimeError: Application timeout caused pair closure'
    assert described(pair).secondary


BACKWARD = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/src/train.py", line 36, in <module>
[rank0]:     y.backward()
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank0]:     torch.autograd.backward(
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in back
[rank0]:     _engine_run_backward(
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine
[rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run
[rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
"""Traceback of torch 2.13 whose peer was killed in `backward`. Its last line follows."""
HOOK = """[rank0]:   File "/src/train.py", line 20, in hook
[rank0]:     raise RuntimeError("my own hook fails")
[rank0]:     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
"""Frames that follow if code of the user raises an error in `backward`."""
_NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:"
_GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5"


@pytest.mark.parametrize(
    "error",
    [
        f"RuntimeError: {_GLOO}37] Read error [127.0.0.1]:41857: Connection reset by peer.",
        f"RuntimeError: {_GLOO}11] writev [10.0.0.2]:4711: No route to host",
        "RuntimeError: [enforce fail at ../gloo/gloo/transport/tcp/pair.cc:446] op.nbytes. 10 vs 9",
        f"torch.distributed.DistBackendError: {_NCCL}317, internal error - please report",
        f"RuntimeError: {_NCCL}9, new",
    ],
    ids=["reset", "no route", "enforce", "NCCL", "NCCL of an older torch"],
)
@pytest.mark.parametrize("frames", [BACKWARD, BACKWARD + HOOK], ids=["backward", "hook"])
def test_error_of_a_collective_is_secondary_whatever_code_waits_for_it(
    frames: str, error: str
) -> None:
    assert described(f"{frames}{error}").secondary


@pytest.mark.parametrize(
    "end",
    [
        f"{HOOK}RuntimeError: my own hook fails",
        f"{HOOK}RuntimeError: bucket_cap_mb of gloo/ddp.h is too small, see NCCL_DEBUG",
        "RuntimeError: one of the variables needed for gradient computation has been modified",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    ],
    ids=["hook", "words", "in place", "assert", "memory"],
)
def test_error_of_the_users_model_in_backward_is_no_secondary_failure(end: str) -> None:
    assert not described(f"{BACKWARD}{end}").secondary


@pytest.mark.parametrize("text", [TRACEBACK, "MemoryError", "", "AssertionError: loss is nan"])
def test_rank_that_failed_by_itself_is_no_secondary_failure(text: str) -> None:
    assert not described(text).secondary


@pytest.mark.parametrize("code", [ExitCode.BAD_INPUT, ExitCode.VOLUME_FAILED])
def test_rank_whose_message_only_rank_0_prints_is_a_secondary_failure(code: ExitCode) -> None:
    silent = described("", returncode=code)
    explained = described("config.epochs: must be positive", returncode=code)
    assert silent.secondary
    assert not explained.secondary


OF_REPLICAS = [ExitCode.CORRUPTED, ExitCode.REPLICAS_DIFFER, ExitCode.CORRUPTION_STOP]


@pytest.mark.parametrize("code", OF_REPLICAS)
def test_rank_whose_weights_are_those_of_most_ranks_is_a_secondary_failure(code: ExitCode) -> None:
    """Only the rank that differs prints why. The others may have printed something else before."""
    found = described("UserWarning: an old warning", returncode=code)
    assert (found.secondary, found.message) == (True, "")
    text = (
        "replicas: the weights of rank 3 differ from those of the other 7 ranks in 1 of 4 tensors"
    )
    blamed = described(text, returncode=code)
    assert (blamed.secondary, blamed.message) == (False, text)


def test_failure_of_torchrun_itself_names_no_rank() -> None:
    found = from_exception(ValueError("no nodes\nsecond line"), 2, 5.0)
    assert (found.message, found.rank, found.secondary) == (
        "torchrun: ValueError: no nodes",
        None,
        False,
    )


def test_torchrun_that_lost_a_peer_is_a_secondary_failure() -> None:
    assert from_exception(ConnectionError("Connection refused"), 2, 5.0).secondary


def log(home: Path, text: str | bytes, *, local_rank: int = 0, run: str = "run1") -> None:
    path = home / run / "attempt_0" / str(local_rank) / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def test_last_traceback_of_a_log_is_found(tmp_path: Path) -> None:
    first = TRACEBACK.replace("flower", "tree")
    log(tmp_path, f"start\n{first}\nDuring handling\n{TRACEBACK}\n")
    assert traceback_in_logs(tmp_path, 0) == TRACEBACK


def test_log_without_a_traceback_gives_its_last_line(tmp_path: Path) -> None:
    log(tmp_path, "start\nSegmentation fault\n\n")
    assert traceback_in_logs(tmp_path, 0) == "Segmentation fault"


@pytest.mark.parametrize("content", [None, "", "\n\n"], ids=["no log", "empty", "blank"])
def test_rank_without_log_lines_gives_an_empty_text(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        log(tmp_path, content)
    assert traceback_in_logs(tmp_path, 0) == ""


def test_each_rank_has_its_own_log(tmp_path: Path) -> None:
    log(tmp_path, "one", local_rank=1)
    assert traceback_in_logs(tmp_path, 0) == ""
    assert traceback_in_logs(tmp_path, 1) == "one"


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    log(tmp_path, b"\xff" * 1_000_000 + b"\n" + TRACEBACK.encode())
    assert traceback_in_logs(tmp_path, 0) == TRACEBACK


def test_signal_number_gives_the_name_of_the_signal() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(250) == "signal 250"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (None, 1),
        ({"exit_code": 7}, 7),
        ({"exit_code": 2}, ExitCode.BAD_INPUT),
        ({"signal": "SIGKILL"}, 137),
        ({"signal": "signal 250"}, 1),
        ({}, 1),
        ({"exit_code": 0}, 1),
    ],
    ids=["no failure", "exit code", "bad input", "signal", "odd signal", "no cause", "zero"],
)
def test_agent_exits_with_the_code_of_its_rank(failure: dict[str, Any] | None, code: int) -> None:
    found = None if failure is None else Failure(attempt=1, at=0, **failure)
    assert exit_code(found) == code
