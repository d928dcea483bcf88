"""torchrun, which writes down which rank fell first and why, in place of a table for the eye.

The only module of the agent that imports torch; it runs in a process of its own.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args, run

from ddp_agent.entry import run_rank
from ddp_agent.failures import FAILURE_FILE_ENV, describe, from_exception, traceback_in_logs
from ddp_agent.haste import hasten
from ddp_wire.contract import Env, ExitCode, Failure


def first_failure(error: ChildFailedError, attempt: int, log_dir: Path) -> Failure:
    """What the first of this node's fallen ranks died of.

    The first by time, but a rank that fell because its peer had gone speaks for nobody.
    """
    found = [
        (_of_rank(rank, process, attempt, log_dir), process.timestamp)
        for rank, process in error.failures.items()
    ]
    return min(found, key=lambda one: (one[0].secondary, _is_silent(one[0]), one[1]))[0]


def _is_silent(failure: Failure) -> bool:
    """Whether it tells nothing: of ranks that end together one usually says why."""
    return failure.signal is None and not failure.message


def _of_rank(rank: int, process: ProcessFailure, attempt: int, log_dir: Path) -> Failure:
    left = traceback_in_logs(log_dir, process.local_rank)
    recorded = _recorded(process.message)
    # Who refuses says why in one line, which beats the traceback of saying so.
    refused = process.exitcode == ExitCode.BAD_INPUT or recorded.rstrip().endswith(f": {left}")
    text = left if refused else recorded or left
    return describe(
        attempt=attempt,
        rank=rank,
        returncode=process.exitcode,
        text=text,
        at=time.time(),  # torch's own stamp is in whole seconds.
    )


def _recorded(message: Any) -> str:
    """The traceback from the error file of a rank whose entry point is wrapped by `record`."""
    if not isinstance(message, dict):
        return ""
    inner = message.get("message", message)
    extra = inner.get("extraInfo", {}) if isinstance(inner, dict) else message.get("extraInfo", {})
    return str(extra.get("py_callstack", ""))


def main(arguments: list[str], *, warm: bool = False) -> int:
    """Run torchrun with these arguments. Exit code 0, 1, or 128 + signal.

    Args:
        arguments: As on torchrun's command line.
        warm: Fork the ranks of this process, which has imported everything, instead of starting
            new interpreters.
    """
    args = parse_args(arguments)
    attempt = int(os.environ[Env.ATTEMPT])
    try:
        _launch_forked(args) if warm else run(args)
    except ChildFailedError as error:
        failure = first_failure(error, attempt, Path(args.log_dir))
    except SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:  # noqa: BLE001 (whatever torchrun dies of is to be told)
        failure = from_exception(error, attempt, time.time())
        print(f"ddp-agent: torchrun failed: {failure.message}", file=sys.stderr)
    else:
        return 0
    Path(os.environ[FAILURE_FILE_ENV]).write_text(failure.to_json(), encoding="utf-8")
    return 1


def _launch_forked(args: Any) -> None:
    """Torchrun by its own launcher API, with ranks that are forks of this process."""
    hasten()
    config, _, command = config_from_args(args)
    config.start_method = "fork"
    entry = command[1:] if command[:1] == ["-u"] else command
    elastic_launch(config, run_rank)(*entry)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
