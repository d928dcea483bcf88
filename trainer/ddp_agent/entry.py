"""Entry point of a forked rank: runs a script or module as a new interpreter would."""

import os
import runpy
import signal
import sys
import traceback

from ddp_agent.failures import without_launcher
from ddp_wire.machine import prefer_for_oom_kill


def run_rank(*command: str) -> None:
    """Run a script or module in this process.

    Raises:
        SystemExit: The script exited.
    """
    # The launcher's handlers, which the fork inherits, would raise in user code.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prefer_for_oom_kill()
    try:
        if command[0] == "-m":
            sys.argv = ["-m", *command[2:]]
            if not sys.flags.safe_path:
                sys.path[0] = os.getcwd()  # noqa: PTH109 (as the interpreter sets it)
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(command)
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.abspath(command[0]))  # noqa: PTH100, PTH120
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        # torch's worker records the exception, but does not print it to stderr.
        lines = traceback.format_exc().splitlines()
        print("\n".join(without_launcher(lines)), file=sys.stderr)
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
