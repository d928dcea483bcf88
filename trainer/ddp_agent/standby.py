"""The standby process: imports everything once, then forks one launcher per attempt.

It stays single-threaded and touches no GPU, for only then is forking it safe; and it imports
nothing of the user's, whose code may do anything at import.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from ddp_agent import dynamo

IDLE_SECONDS = 300.0
"""After so long without an order it imports what is seldom needed, for later attempts."""
_MODULES = (
    "ddp_agent.torchrun",
    "torch.nn.parallel.distributed",
    "torch.distributed.algorithms.join",
    "torch.utils.data",
    "numpy.random",
    "safetensors.torch",
    "ddp_trainer.commands.main",
    "ddp_trainer.train",
)


def import_all() -> None:
    """Import what ranks will need. A module that is not there is not needed."""
    with _no_garbage():
        for name in _MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        with contextlib.suppress(ImportError):
            dynamo.put_off()


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """For imports: nothing of them is garbage, and looking for some takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Serve fork orders until the agent closes the pipe. Arguments: both pipe ends."""
    orders, words = int(sys.argv[1]), int(sys.argv[2])
    began = time.monotonic()
    import_all()
    _exit_unless_alone()
    wakeup_in, wakeup_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_out, warn_on_full_buffer=False)
    _say(words, ready=time.monotonic() - began)
    buffer = b""
    idle: float | None = IDLE_SECONDS
    while True:
        readable, _, _ = select.select([orders, wakeup_in], [], [], idle)
        if not readable:
            idle = None
            # An attempt is running, which needs this process more than the compiler.
            with _no_garbage(), contextlib.suppress(Exception):
                dynamo.load()
            continue
        if wakeup_in in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup_in, 4096)
        _report_exits(words)
        if orders not in readable:
            continue
        chunk = os.read(orders, 65536)
        if not chunk:
            return  # The agent is gone, and with it the reason to be here.
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            order = json.loads(line)
            _exit_unless_alone()
            pid = os.fork()
            if pid == 0:
                _become_launcher(order, [orders, words, wakeup_in, wakeup_out])
            _say(words, started=pid)


def _exit_unless_alone() -> None:
    """End this process if it has threads: they would be missing in its forks."""
    if threading.active_count() > 1:
        sys.exit("ddp-agent: the standby has threads, attempts start cold")


def _become_launcher(order: dict[str, Any], descriptors: list[int]) -> None:
    """In the fork: run one attempt and exit without any of the standby's clean-up."""
    from ddp_agent import torchrun  # noqa: PLC0415 (imported long since)

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


def _report_exits(words: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(words, exited=pid, code=os.waitstatus_to_exitcode(status))


def _say(words: int, **word: float) -> None:
    os.write(words, json.dumps(word).encode() + b"\n")


if __name__ == "__main__":
    main()
