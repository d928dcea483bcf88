"""Command line: `ddp-trainer COMMAND` or `python -m ddp_trainer COMMAND`."""

import argparse
import os
import select
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from ddp_trainer.errors import InputError, ReportedError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.stop import StopFlag
from ddp_wire.exit_codes import ExitCode
from ddp_wire.processes import raise_open_file_limit

COMMANDS = {
    "train": "train a task, or resume it from its newest checkpoint",
    "check": "check settings and data without training",
    "verify": "compare the weights of one process with those of several ranks",
    "converge": "compare the losses of a task at several world sizes and global batches",
    "call": "call a function with the settings of a run",
    "bench": "measure scaling over ranks and the overhead of the loop",
    "export": "write a trained model for other programs",
    "convert": "convert weights between file formats",
    "inspect": "show the checkpoints of a run, and which one a start would use",
    "profile": "request a trace of some updates of a run in progress",
}
"""Help text of each command in one line. The module with the command's name has its parser."""
RANK_0_MESSAGE_SECONDS = 2.0
"""Seconds for which other ranks delay their exit, so that rank 0 can print the error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    On rank 0, print an error of the user's input as one sentence on standard error. Print any other
    failure as a traceback. In a process group, exit at once after a failure, because hanging peers
    and threads must not keep the process alive.
    """
    stop = StopFlag()
    stop.install()
    raise_open_file_limit()
    add_working_directory()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments, os.environ, stop)
        sys.stdout.flush()
    except BrokenPipeError as error:
        code = _closed_output(error)
    except ReportedError as error:
        code = _report(error, stop)
    except Exception:  # noqa: BLE001 - any failure ends the process here
        traceback.print_exc()
        code = ExitCode.FAILED
    stop.ignore()
    if code not in (ExitCode.OK, ExitCode.PREEMPTED):
        _exit_now_if_in_process_group(code)
    return code


def add_working_directory() -> None:
    """Let Python find a task in the working directory, as `python -m` does.

    By default the installed command `ddp-trainer` finds only installed modules. If PYTHONSAFEPATH
    is set, the function adds nothing.
    """
    here = Path.cwd()
    if not sys.flags.safe_path and not {"", str(here)} & set(sys.path):
        sys.path.append(str(here))


def _run(arguments: Sequence[str], environ: Mapping[str, str], stop: StopFlag) -> ExitCode:
    options, rest = _parser(arguments).parse_known_args(arguments)
    if options.command not in ("train", "bench"):
        stop.release()  # Only these two have something to do before they end.
    code: ExitCode = options.run(options, rest, environ, stop)
    return code


def _parser(arguments: Sequence[str]) -> "_Parser":
    """Return the parser of the command line. Import only the module of the named command."""
    parser = _Parser(prog="ddp-trainer", description="Train a task on any number of ranks.")
    commands = parser.add_subparsers(dest="command", required=True)
    named = next((one for one in arguments if not one.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == named:
            import_module(f"ddp_trainer.commands.{name}").add_to(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises an error instead of printing its usage on every rank."""

    def __init__(self, **settings: object) -> None:
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")


def _report(error: ReportedError, stop: StopFlag) -> ExitCode:
    """Print the error on rank 0, or on the only rank that has it. Return the exit code.

    The launcher terminates all ranks as soon as one has exited. The other ranks therefore wait for
    that signal or a time-out. Otherwise rank 0 could be terminated before it has printed.
    """
    try:
        first = Ranks.from_environment(os.environ).is_first
    except InputError:
        first = True
    if (first or error.rank_specific) and not error.silent:
        print(error, file=sys.stderr, flush=True)
    else:
        deadline = time.monotonic() + RANK_0_MESSAGE_SECONDS
        while not stop.requested and time.monotonic() < deadline:
            time.sleep(0.05)
    return error.code


def _closed_output(error: BrokenPipeError) -> ExitCode:
    """Return the exit code after a write to a closed pipe. Print any other cause as a traceback.

    A reader like `head` closes standard output when it has read enough, which is no failure of
    the command.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(events & select.POLLERR for _, events in output.poll(0)):
        traceback.print_exception(error)
        return ExitCode.FAILED
    # Python flushes standard output once more when the process ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


def _exit_now_if_in_process_group(code: ExitCode) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
