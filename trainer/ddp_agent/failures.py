"""Describe why ranks failed, from their exit codes, tracebacks and logs.

Process: launcher (writes the failure file), agent (reads it) and rank (prints its traceback).
"""

import re
import signal
from pathlib import Path

from pydantic import ValidationError

from ddp_wire import collective_errors
from ddp_wire.contract import ExitCode
from ddp_wire.messages import Failure
from ddp_wire.replica_errors import PREFIX

FAILURE_FILE_ENV = "DDP_FAILURE_FILE"
"""Environment variable with the path of the file to which the launcher writes the failure."""

_OF_REPLICAS = frozenset({ExitCode.CORRUPTED, ExitCode.REPLICAS_DIFFER, ExitCode.CORRUPTION_STOP})
"""Exit codes of ranks whose weights differ. Only the ranks that are the cause print why."""
ONE_SENTENCE = frozenset({ExitCode.BAD_INPUT, ExitCode.VOLUME_FAILED, *_OF_REPLICAS})
"""Exit codes of errors for which one rank has printed one sentence and no traceback."""

_TAIL_LINES = 20
_LOG_TAIL_BYTES = 64 * 1024

_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Read error|Broken pipe|Connection refused"
    r"|remote process exited|NCCL communicator was aborted|Socket Timeout|failed to recv"
    r"|DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousClosedError"
    r"|RendezvousTimeoutError|/gloo/.*(Timed out|timeout)|Application timeout caused pair closure"
)
"""Parts of the messages of ranks and of torchrun after the loss of a peer."""

_PEER_ERROR = re.compile(
    r'^  File "[^"]*/torch/distributed/[^"]*".*\n(?:    .*\n)*RuntimeError: ', re.MULTILINE
)
"""Pattern for the end of a traceback that was raised in torch, in a call that waits for peers.
Libraries choose the texts of these errors, and an unknown text must not make a rank the root cause.
Autograd raises errors of DDP's collectives and of the user's model from the same line, so there
only the library's prefix distinguishes them."""

_FRAME = re.compile(r"^[\s|+-]*File \"")
_GROUP_MARGIN = re.compile(r"^\s*[|+][-+| ]?\s?")
"""Pattern of the margin before a line of an exception group."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""Prefix that torch adds to each line of an uncaught traceback."""

_LAUNCHER_FRAME = re.compile(
    r'File "(<frozen runpy>|.*/ddp_agent/launcher/entry\.py'
    r'|.*/elastic/multiprocessing/errors/__init__\.py)"'
)

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
"""Signals that stop a rank on request. A rank with one of these did not fail first."""


def describe(*, attempt: int, rank: int, returncode: int, text: str, at: float) -> Failure:
    """Return the failure of a rank.

    Args:
        attempt: Number of the attempt.
        rank: Global rank.
        returncode: Exit code, negative for a signal.
        text: Traceback or end of the log.
        at: Unix seconds.
    """
    lines = [_RANK_PREFIX.sub("", line).rstrip() for line in text.splitlines() if line.strip()]
    lines = without_launcher(lines)
    message = reason(lines)
    if returncode in _OF_REPLICAS and not message.startswith(PREFIX):
        message = ""  # The last line of the log is about something else.
    name = signal_name(-returncode) if returncode < 0 else None
    silent = returncode in ONE_SENTENCE and not message
    return Failure(
        attempt=attempt,
        at=at,
        rank=rank,
        exit_code=returncode if returncode >= 0 else None,
        signal=name,
        # The last line of the log does not explain a signal.
        message="" if name else message[:1024],
        traceback="" if name else "\n".join(lines[-_TAIL_LINES:])[-4096:],
        # All ranks raise the same error, but only one prints it: only that one is the cause.
        secondary=-returncode in _STOP_SIGNALS or _lost_peer(lines) or silent,
    )


def _lost_peer(lines: list[str]) -> bool:
    text = "\n".join(lines)
    patterns = (_PEER_LOST, _PEER_ERROR, collective_errors.RAISED)
    return any(pattern.search(text) for pattern in patterns)


def reason(lines: list[str]) -> str:
    """Return the first line of a traceback's exception message, or else the last line.

    The message of an exception may have several lines, and other output may follow it.
    """
    last_frame = max((i for i, line in enumerate(lines) if _FRAME.match(line)), default=None)
    if last_frame is not None:
        for line in lines[last_frame + 1 :]:
            text = _GROUP_MARGIN.sub("", line)
            if text and not text.startswith(" "):
                return text.strip()
    return lines[-1].strip() if lines else ""


def without_launcher(lines: list[str]) -> list[str]:
    """Return the lines of a traceback without the launcher's frames, which are not user code."""
    kept, skipping = [], False
    for line in lines:
        if line.startswith("  File "):
            skipping = bool(_LAUNCHER_FRAME.search(line))
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return kept


def from_exception(error: BaseException, attempt: int, at: float) -> Failure:
    """Return a failure of torchrun itself, which names no rank."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return Failure(
        attempt=attempt,
        at=at,
        message=f"torchrun: {text}"[:1024],
        secondary=bool(_PEER_LOST.search(f"{type(error).__name__}: {error}")),
    )


def read_failure(path: Path, attempt: int, returncode: int | None, at: float) -> Failure:
    """Return the failure in the launcher's file, or else one from the signal or exit code."""
    try:
        return Failure.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        if returncode is not None and returncode < 0:
            message = "torchrun was killed before it could report a cause"
            signal = signal_name(-returncode)
            return Failure(attempt=attempt, at=at, signal=signal, message=message)
        message = f"torchrun ended with exit code {returncode} and wrote no readable failure file"
        return Failure(attempt=attempt, at=at, message=message)


def traceback_in_logs(log_dir: Path, local_rank: int) -> str:
    """Return the last traceback in a rank's stderr log, or else its last line, or ""."""
    logs = sorted(log_dir.glob(f"*/attempt_0/{local_rank}/stderr.log"))
    if not logs:
        return ""
    with logs[-1].open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
        text = file.read().decode("utf-8", "replace").strip()
    start = text.rfind("Traceback (most recent call last):")
    if start >= 0:
        return text[start:]
    return text.splitlines()[-1] if text else ""


def signal_name(number: int) -> str:
    """Return the name of a signal, for example SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(failure: Failure | None) -> int:
    """Return the agent's exit code after a failure: the rank's own code, 128 + signal, or 1."""
    if failure is None:
        return ExitCode.FAILED
    if failure.signal is not None and failure.signal in signal.Signals.__members__:
        return 128 + signal.Signals[failure.signal]
    return failure.exit_code or ExitCode.FAILED


def to_sentence(failure: Failure) -> str:
    """Return the failure as one sentence for the log."""
    subject = f"rank {failure.rank}" if failure.rank is not None else "this node"
    verb = f"was killed by {failure.signal}" if failure.signal else "failed"
    return f"{subject} {verb}" + (f": {failure.message}" if failure.message else "")
