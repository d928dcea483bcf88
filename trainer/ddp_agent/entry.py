"""What a forked rank runs in place of a new interpreter."""

import os
import runpy
import signal
import sys
import traceback

from ddp_agent.failures import without_launcher
from ddp_wire.machine import fall_first


def run_rank(*command: str) -> None:
    """Run a script or module as `python` would, in this process.

    Raises:
        SystemExit: As the script does, or with 1 after an exception, whose traceback is printed.
    """
    # Inherited from the launcher, whose handlers raise in whatever it is doing.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fall_first()
    try:
        if command[0] == "-m":
            sys.argv = ["-m", *command[2:]]
            if not sys.flags.safe_path:
                sys.path[0] = os.getcwd()  # noqa: PTH109 (as the interpreter puts it there)
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(command)
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.abspath(command[0]))  # noqa: PTH100, PTH120
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        # torch's worker records the exception, but says nothing where a person looks for it.
        lines = traceback.format_exc().splitlines()
        print("\n".join(without_launcher(lines)), file=sys.stderr)
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
