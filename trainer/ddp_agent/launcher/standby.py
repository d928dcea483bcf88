"""Standby: import torch once, then fork one launcher per attempt.

A fork is safe only from a process with one thread that has never opened the GPU. So the standby
imports no user code, because user code may do anything at import. Each fork checks that it can use
the pod's GPUs before it runs an attempt.

Process: standby. A fork of it becomes the launcher.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from ddp_agent import logs

PRELOADED_MODULES = (
    "ddp_agent.launcher.torchrun",
    "torch.nn.parallel.distributed",
    "torch.distributed.algorithms.join",
    "torch._dynamo",  # DDP, process groups and optimizers import it on first use
    "torch.utils.data",
    "numpy.random",
    "safetensors.torch",
    "ddp_trainer.commands.main",
    "ddp_trainer.commands.train",
    "ddp_trainer.train",
)
"""Modules that ranks need. The standby skips modules that the image lacks."""


def import_all() -> None:
    """Import the preloaded modules."""
    with _no_garbage_collection():
        for name in PRELOADED_MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which frees nothing during imports and makes them 20% slower."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Fork launchers on request until the agent closes the pipe. Arguments: both pipe ends."""
    orders, messages = int(sys.argv[1]), int(sys.argv[2])
    began = time.monotonic()
    import_all()
    _exit_if_threaded()
    wakeup_in, wakeup_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_out, warn_on_full_buffer=False)
    _send(messages, ready=time.monotonic() - began)
    buffer, poll = b"", select.poll()  # select(2) fails for descriptors from 1024.
    for descriptor in (orders, wakeup_in):
        poll.register(descriptor, select.POLLIN)
    while True:
        readable = {descriptor for descriptor, _ in poll.poll()}
        if wakeup_in in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup_in, 4096)
        _report_exits(messages)
        if orders not in readable:
            continue
        chunk = os.read(orders, 65536)
        if not chunk:
            return  # The agent has ended.
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            order = json.loads(line)
            _exit_if_threaded()
            pid, problem = _fork(order, [orders, messages, wakeup_in, wakeup_out])
            if problem:
                _send(messages, unusable=problem)
            else:
                _send(messages, started=pid)


def _exit_if_threaded() -> None:
    """Exit if this process has several threads, because a fork has only the calling thread."""
    if threading.active_count() > 1:
        message = "the standby has several threads and cannot fork safely, so attempts start cold"
        sys.exit(logs.format_line(message, logging.WARNING))


def _fork(order: dict[str, Any], descriptors: list[int]) -> tuple[int, str]:
    """Fork a launcher. Return its process id, and the reason why it cannot use the GPUs, or ""."""
    from ddp_agent.launcher import torchrun  # noqa: PLC0415 (already imported by the standby)

    verdict_in, verdict_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(verdict_in)
        _state_verdict(verdict_out, torchrun.gpu_problem(order["environment"]))
        _become_launcher(order, descriptors)
    os.close(verdict_out)
    with os.fdopen(verdict_in) as verdict:
        problem = verdict.read()
    if problem:
        os.waitpid(pid, 0)
    return pid, problem


def _state_verdict(pipe: int, problem: str) -> None:
    """Report to the standby whether this fork can run an attempt. Exit if it cannot."""
    os.write(pipe, problem.encode())
    os.close(pipe)
    if problem:
        os._exit(0)


def _become_launcher(order: dict[str, Any], descriptors: list[int]) -> None:
    """Run one attempt in the fork, and exit without the standby's cleanup handlers."""
    from ddp_agent.launcher import torchrun  # noqa: PLC0415 (already imported by the standby)

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in descriptors:
            os.close(descriptor)
        os.setsid()
        os.environ.clear()
        os.environ.update(order["environment"])
        code = torchrun.main(order["arguments"], warm=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report_exits(messages: int) -> None:
    """Reap launchers that have ended, and send their exit codes."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(messages, exited=pid, code=os.waitstatus_to_exitcode(status))


def _send(messages: int, **message: float | str) -> None:
    """Write a message to the agent's pipe."""
    os.write(messages, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
