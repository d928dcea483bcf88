"""From an exit code and the text that a rank left to a failure that a person understands."""

import re
import signal
from pathlib import Path

from ddp_wire.contract import ExitCode, Failure

FAILURE_FILE_ENV = "DDP_FAILURE_FILE"
"""Names the file in which torchrun's wrapper tells the agent what it saw."""

_TAIL_LINES = 20
_LOG_TAIL_BYTES = 64 * 1024

_PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Read error|Broken pipe|Connection refused"
    r"|remote process exited|NCCL communicator was aborted|Socket Timeout|failed to recv"
    r"|DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousClosedError"
    r"|RendezvousTimeoutError"
)
"""What ranks and torchrun say when another one has gone."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch puts it before each line of an uncaught traceback."""

_LAUNCHER_FRAME = re.compile(
    r'File "(<frozen runpy>|.*/ddp_agent/entry\.py|.*/elastic/multiprocessing/errors/__init__\.py)"'
)

_STOPPED = {signal.SIGTERM, signal.SIGINT}
"""A rank that one of these ended was told to go: it is not what failed first."""


def describe(*, attempt: int, rank: int, returncode: int, text: str, at: float) -> Failure:
    """A rank's end. `returncode` is negative for a signal, `text` a traceback or a log's tail."""
    lines = [_RANK_PREFIX.sub("", line).rstrip() for line in text.splitlines() if line.strip()]
    lines = without_launcher(lines)
    message = lines[-1].strip() if lines else ""
    name = signal_name(-returncode) if returncode < 0 else None
    silent = returncode == ExitCode.BAD_INPUT and not message
    return Failure(
        attempt=attempt,
        at=at,
        rank=rank,
        exit_code=returncode if returncode >= 0 else None,
        signal=name,
        # A signal leaves no last words: what stands last in the log has nothing to do with it.
        message="" if name else message[:1024],
        traceback="" if name else "\n".join(lines[-_TAIL_LINES:])[-4096:],
        # Of ranks that refuse one and the same input only one says why: that one is the cause.
        secondary=-returncode in _STOPPED or bool(_PEER_GONE.search(text)) or silent,
    )


def without_launcher(lines: list[str]) -> list[str]:
    """A traceback without the frames by which a rank was started: they tell its author nothing."""
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
    """Torchrun's own end, with no rank to blame."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return Failure(
        attempt=attempt,
        at=at,
        message=f"torchrun: {text}"[:1024],
        secondary=bool(_PEER_GONE.search(f"{type(error).__name__}: {error}")),
    )


def traceback_in_logs(log_dir: Path, local_rank: int) -> str:
    """The last traceback in a rank's stderr, or else its last line; empty when it left none."""
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
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(failure: Failure | None) -> int:
    """What the agent exits with after a failure: the rank's own code, 128 + signal, or 1."""
    if failure is None:
        return ExitCode.FAILED
    if failure.signal is not None and failure.signal in signal.Signals.__members__:
        return 128 + signal.Signals[failure.signal]
    return failure.exit_code or ExitCode.FAILED
