"""Run torchrun, and write a file about the rank that failed first and its failure.

Process: launcher, a fork of the standby (warm) or a new process (cold).
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from ddp_agent import logs
from ddp_agent.failures import (
    FAILURE_FILE_ENV,
    ONE_SENTENCE,
    describe,
    from_exception,
    traceback_in_logs,
)
from ddp_agent.launcher import (
    exit_patches,
    peer_stop,
    rendezvous_store,
    torchrun_patches,
    whole_lines,
)
from ddp_agent.launcher.entry import run_rank
from ddp_agent.launcher.signed_rendezvous import require_signatures
from ddp_agent.processes.launch import RENDEZVOUS_KEY_ENV
from ddp_agent.processes.warm import NVML_CHECK
from ddp_wire.contract import Env
from ddp_wire.messages import Failure
from ddp_wire.secret_variables import take


def gpu_problem(environment: Mapping[str, str]) -> str:
    """Return the reason why this fork of the standby cannot use the pod's GPUs, or "".

    The check uses NVML and not CUDA, because this process must still fork the ranks.
    """
    wanted = environment.get(Env.GPUS_PER_NODE, "")
    if not wanted.isdigit() or int(wanted) == 0:
        return ""
    try:
        if torch.cuda._is_in_bad_fork():  # noqa: SLF001 (there is no other access)
            return "an import has initialised CUDA in the standby"
        seen = torch.cuda._device_count_nvml()  # noqa: SLF001 (likewise)
    except Exception as error:  # noqa: BLE001 (after any failure here a cold start is right)
        return f"torch does not report whether a forked process can use CUDA: {error!r}"
    if seen < int(wanted):
        return f"NVML finds {max(seen, 0)} of the pod's {wanted} GPUs"
    return ""


def first_failure(error: ChildFailedError, attempt: int, log_dir: Path) -> Failure:
    """Return the earliest failure of this node's ranks.

    A secondary failure, or one without a message, counts only if there is no other failure.
    """
    found = [
        (_of_rank(rank, process, attempt, log_dir), process.timestamp)
        for rank, process in error.failures.items()
    ]
    return min(found, key=lambda one: (one[0].secondary, _is_silent(one[0]), one[1]))[0]


def _is_silent(failure: Failure) -> bool:
    """Return whether a failure has neither signal nor message. Another rank usually has one."""
    return failure.signal is None and not failure.message


def _of_rank(rank: int, process: ProcessFailure, attempt: int, log_dir: Path) -> Failure:
    """Return the failure of one rank, from torch's record of it."""
    logged = traceback_in_logs(log_dir, process.local_rank)
    recorded = _recorded(process.message)
    # A rank that prints its reason in one line needs no traceback.
    one_line = process.exitcode in ONE_SENTENCE or recorded.rstrip().endswith(f": {logged}")
    text = logged if one_line else recorded or logged
    return describe(
        attempt=attempt,
        rank=rank,
        returncode=process.exitcode,
        text=text,
        at=time.time(),  # torch's own timestamp has whole seconds only.
    )


def _recorded(message: Any) -> str:
    """Return the traceback in a rank's error file, which the decorator `record` writes, or ""."""
    if not isinstance(message, dict):
        return ""
    inner = message.get("message", message)
    extra = inner.get("extraInfo", {}) if isinstance(inner, dict) else message.get("extraInfo", {})
    return str(extra.get("py_callstack", ""))


def main(arguments: list[str], *, warm: bool = False) -> int:
    """Run torchrun. Return the exit code: 0, 1, or 128 + signal.

    Args:
        arguments: Arguments of torchrun's command line.
        warm: Fork the ranks from this process instead of starting new interpreters.
    """
    key = take([RENDEZVOUS_KEY_ENV]).get(RENDEZVOUS_KEY_ENV, "")  # The ranks need not know it.
    if key:
        require_signatures(key)
    args = parse_args(arguments)
    attempt = int(os.environ[Env.ATTEMPT])
    whole_lines.apply()
    peer_stop.apply()
    exit_patches.apply(lambda rank, failed: _of_rank(rank, failed, attempt, Path(args.log_dir)))
    try:
        _launch_forked(args) if warm else _launch_interpreters(args)
    except ChildFailedError as error:
        failure = first_failure(error, attempt, Path(args.log_dir))
    except SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:  # noqa: BLE001 (every failure of torchrun must be reported)
        failure = from_exception(error, attempt, time.time())
        line = logs.format_line(f"torchrun failed: {failure.message}", logging.ERROR)
        print(line, file=sys.stderr)
    else:
        return 0
    Path(os.environ[FAILURE_FILE_ENV]).write_text(failure.to_json(), encoding="utf-8")
    return 1


def _launch_interpreters(args: Any) -> None:
    """Run torchrun as its own `run` does, but with the store on the agent's addresses."""
    config, program, arguments = config_from_args(args)
    with rendezvous_store.hosted(config):
        elastic_launch(config, program)(*arguments)


def _launch_forked(args: Any) -> None:
    """Run torchrun through its launcher API, with ranks that are forks of this process.

    torchrun looks for GPUs. If this process opened CUDA for this, no forked rank could use the
    GPUs.
    """
    torchrun_patches.apply()
    asked_by_nvml = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    config, _, command = config_from_args(args)
    config.start_method = "fork"
    entry = command[1:] if command[:1] == ["-u"] else command

    def rank(*command: str) -> None:
        if asked_by_nvml is None:
            del os.environ[NVML_CHECK]
        run_rank(*command)

    with rendezvous_store.hosted(config):
        elastic_launch(config, rank)(*entry)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
