"""Run a script or module in a forked rank, as a new interpreter would.

A program must behave as if it were not a fork of the standby. So this module resets what the fork
inherits, and ends the process as an interpreter does (docs/develop/decisions/0006-standby.md).

Process: rank (of a warm start).
"""

import atexit
import io
import itertools
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

from ddp_agent.failures import without_launcher
from ddp_wire.machine import prefer_for_oom_kill
from ddp_wire.stacks import answer_stack_requests
from ddp_wire.variables import Env

_MAIN_PROCESS: Any = type(multiprocessing.current_process())
"""Class of multiprocessing's main process object. The standby's own object is an instance."""


def run_rank(*command: str) -> None:
    """Run a script or module in this process.

    Raises:
        SystemExit: The script exited.
    """
    os.setsid()  # As torchrun starts its ranks.
    _reset_signals()
    _reset_multiprocessing()
    _reset_random_streams()
    _reset_exit_hooks()
    prefer_for_oom_kill()
    answer_stack_requests(os.environ.get(Env.BEATS_DIR), os.environ.get("LOCAL_RANK"))
    sys.orig_argv = [sys.executable, "-u", *command]
    try:
        _run(list(command))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            raise
        print(error.code, file=sys.stderr)
        raise SystemExit(1) from None
    except BaseException as error:
        _print_exception(error)
        raise
    finally:
        _run_exit_hooks()


def _run(command: list[str]) -> None:
    # sys.flags describes the standby. The variable is what a new interpreter would read.
    safe_path = bool(os.environ.get("PYTHONSAFEPATH"))
    if command[0] == "-m":
        sys.argv = ["-m", *command[2:]]
        if not safe_path:
            sys.path[0:0] = [os.getcwd()]  # noqa: PTH109 (as the interpreter sets it)
        _require_module(command[1])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = command
    path = command[0]
    if os.path.isdir(path) or not path.endswith(".py"):  # noqa: PTH112 (as runpy does)
        runpy.run_path(path, run_name="__main__")  # A folder or an archive with a __main__.py.
        return
    if not safe_path:
        sys.path[0:0] = [os.path.dirname(os.path.abspath(path))]  # noqa: PTH100, PTH120
    with io.open_code(os.path.abspath(path)) as file:  # noqa: PTH100
        code = compile(file.read(), path, "exec")
    # runpy would put the standby's __main__ back before the exit hooks run.
    main = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=__builtins__, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    exec(code, vars(main))  # noqa: S102 (the user's script)


def _require_module(name: str) -> None:
    """Exit with Python's own one-line error if the module is missing. runpy would raise."""
    private: Any = runpy
    try:
        private._get_module_details(name, private._Error)
    except private._Error as error:
        raise SystemExit(f"{sys.executable}: {error}") from None


def _reset_signals() -> None:
    """Remove the launcher's signal handlers, which would raise errors in user code."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _reset_multiprocessing() -> None:
    """Reset multiprocessing to the state of a new process: no start method, parent or children."""
    state: Any = multiprocessing.process
    state._current_process = _MAIN_PROCESS()
    state._parent_process = None
    state._process_counter = itertools.count(1)
    state._children = set()
    multiprocessing.set_start_method(None, force=True)


def _reset_random_streams() -> None:
    """Seed the random generators that a new interpreter would seed at random."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _reset_exit_hooks() -> None:
    """Remove the launcher's exit hooks. Register those of imported standard library modules."""
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def _run_exit_hooks() -> None:
    """Run exit hooks as an interpreter does. A multiprocessing fork would end without them."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _print_exception(error: BaseException) -> None:
    """Print an exception as the interpreter does, but without the launcher's frames.

    torch's worker only records the exception and does not print it.
    """
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    lines = traceback.format_exc().splitlines()
    print("\n".join(without_launcher(lines)), file=sys.stderr)
