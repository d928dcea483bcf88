"""Preflight: all ranks compare their versions, configuration and data before training starts.

Without this comparison, a difference causes a hang in the first collective or a slightly wrong
loss.
"""

import hashlib
import json
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ddp_trainer.errors import InputError, ReportedError, reported_error
from ddp_trainer.ranks.collectives import is_joined
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.topology import Location
from ddp_wire.contract import ExitCode

MESSAGE_BYTES = 2048
"""Size of each rank's JSON message, in bytes. The size is fixed, so that one exchange is enough."""
MAX_NAMED_RANKS = 8
"""Maximum number of ranks that a message lists."""
_TEXT_CHARACTERS = 400
_DRIVER_FILE = Path("/proc/driver/nvidia/version")

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Information that one rank sends to all other ranks in the preflight exchange."""

    node: str
    """Host name of the node."""
    config: str = ""
    """Hash of the task and the resolved configuration."""
    data: str = ""
    """Fingerprint of the data sets."""
    source: str = ""
    """Fingerprint of the task's own code. Empty for a bundled task."""
    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    driver: str = ""
    """Version of NVIDIA's kernel module. Empty without a GPU."""
    gpu: str = ""
    """Model and compute capability of the GPU. Empty without a GPU."""
    arithmetic: str = ""
    """What decides how the rank rounds: the GPU, or the CPU's instructions and number of threads.
    It may differ between ranks."""
    host: str = ""
    rack: str = ""
    zone: str = ""
    """Zone of the rank. `host`, `rack` and `zone` are its location, which may differ between
    ranks."""
    error: str = ""
    """Reason why this rank cannot continue. Empty if it can."""
    code: int = 0
    """Exit code that belongs to the error."""

    @property
    def location(self) -> Location:
        """Location of the rank."""
        return Location(self.host, self.rack, self.zone)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One field of `RankInfo` that must be equal on all ranks."""

    field: str
    label: str
    permanent: bool
    """Whether no new attempt can fix a difference. Otherwise an attempt on other nodes may
    succeed."""
    printable: bool = True
    """Whether messages may contain the values of the field."""


_RULES = (
    _Rule("config", "a configuration", permanent=True, printable=False),
    _Rule("data", "data", permanent=True),
    _Rule("python", "Python", permanent=False),
    _Rule("torch", "torch", permanent=False),
    _Rule("cuda", "CUDA", permanent=False),
    _Rule("nccl", "NCCL", permanent=False),
    _Rule("driver", "NVIDIA driver", permanent=False),
    _Rule("gpu", "GPU", permanent=False),
)


_SOURCE = _Rule("source", "code of the task", permanent=False, printable=False)
"""Rule for the task's code. A difference is only a warning, because a rank may load modules that
other ranks do not need."""


def rank_info(
    device: torch.device, document: Any, data: str, source: str, location: Location
) -> RankInfo:
    """Return the information about this rank.

    Args:
        device: Device of the rank.
        document: JSON document of task and resolved configuration.
        data: Fingerprint of the data sets.
        source: Fingerprint of the task's own code.
        location: Location of the rank.
    """
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    gpu = f"{properties.name} ({properties.major}.{properties.minor})" if properties else ""
    text = json.dumps(document, sort_keys=True).encode()
    return RankInfo(
        node=socket.gethostname(),
        config=hashlib.blake2b(text, digest_size=8).hexdigest(),
        data=data,
        source=source,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "",
        driver=_driver() if on_gpu else "",
        gpu=gpu,
        arithmetic=gpu or _cpu_arithmetic(),
        host=location.host,
        rack=location.rack,
        zone=location.zone,
    )


def _cpu_arithmetic() -> str:
    """Return the instructions and the number of threads of torch's kernels on the CPU.

    Kernels divide a tensor among the threads. At the end of each part they use other instructions,
    and sums have another order.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} on {torch.get_num_threads()} threads"


def _driver() -> str:
    """Return the version of NVIDIA's kernel module, or an empty string."""
    try:
        text = _DRIVER_FILE.read_text()
    except OSError:
        return ""
    # Example: NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 ...
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return version[0] if version else ""


def build_and_compare(
    build: Callable[[], tuple[Built, RankInfo]],
    ranks: Ranks,
    device: torch.device,
    *,
    allow_mixed: bool,
) -> tuple[Built, list[RankInfo], list[str]]:
    """Build an object on each rank, and check that all ranks succeeded and are alike.

    Every rank must call this function.

    Args:
        build: Function that returns the built object and the information about this rank.
        ranks: This process's rank.
        device: The run's device, which the exchange uses.
        allow_mixed: Whether different versions or GPUs cause warnings instead of an error.

    Returns:
        The built object, the information about each rank in the order of ranks, and one warning for
        each permitted difference, including different code of the task.

    Raises:
        ReportedError: On every rank, if a rank could not build or differs. The message names that
            rank.
        Exception: On the failed rank only, the error of `build`.
    """
    failure: Exception | None = None
    built: Built | None = None
    try:
        built, info = build()
    except Exception as error:  # noqa: BLE001 - raised below, after the exchange
        failure, info = error, _info_of_failure(error)
    infos = _exchange(info, ranks, device)
    if failure is not None and not isinstance(failure, ReportedError):
        raise failure
    found = _first_error(infos)
    if found is not None:
        raise found
    warnings = [sentence for sentence, _ in find_differences(infos, [_SOURCE])]
    for sentence, permanent in find_differences(infos):
        if permanent:
            raise InputError(f"preflight: {sentence}")
        if not allow_mixed:
            raise ReportedError(f"preflight: {sentence}; parallel.allow_mixed permits it")
        warnings.append(sentence)
    if built is None:
        raise RuntimeError("build returned None without raising an error")
    return built, infos, warnings


def find_differences(
    infos: Sequence[RankInfo], rules: Sequence[_Rule] = _RULES
) -> list[tuple[str, bool]]:
    """Find the fields that differ between ranks, in the order of severity.

    Args:
        infos: Information about each rank, in the order of ranks.
        rules: The fields to compare.

    Returns:
        For each difference a sentence that names the minority ranks, and whether it is permanent.
    """
    found = []
    for rule in rules:
        values = [str(getattr(info, rule.field)) for info in infos]
        # If two values are equally frequent, the value of the lower rank is the usual one.
        usual, count = Counter(values).most_common(1)[0]
        if count == len(values):
            continue
        odd = [rank for rank, value in enumerate(values) if value != usual]
        subject = f"{_name_ranks(odd, infos)} {'has' if len(odd) == 1 else 'have'} {rule.label}"
        if rule.printable:
            theirs = values[odd[0]] or "none"
            sentence = f"{subject} {theirs}, the others {usual or 'none'}"
        else:
            sentence = f"{subject} that differs from that of the others"
        found.append((sentence, rule.permanent))
    return found


def _name_ranks(odd: Sequence[int], infos: Sequence[RankInfo]) -> str:
    if len(odd) == 1:
        return f"rank {odd[0]} on {infos[odd[0]].node}"
    nodes = sorted({infos[rank].node for rank in odd})
    shown = ", ".join(map(str, odd[:MAX_NAMED_RANKS]))
    shown += " …" if len(odd) > MAX_NAMED_RANKS else ""
    return f"ranks {shown} on {nodes[0]}" if len(nodes) == 1 else f"ranks {shown}"


def _info_of_failure(error: Exception) -> RankInfo:
    known = isinstance(error, ReportedError)
    text = str(error) if known else f"{type(error).__name__}: {error}".splitlines()[0]
    code = error.code if isinstance(error, ReportedError) else ExitCode.FAILED
    return RankInfo(socket.gethostname(), error=text[:_TEXT_CHARACTERS] or "failed", code=code)


def _first_error(infos: Sequence[RankInfo]) -> ReportedError | None:
    failed = [rank for rank, info in enumerate(infos) if info.error]
    if not failed:
        return None
    # A retryable failure takes precedence, because the run may still succeed in a new attempt.
    rank = min(failed, key=lambda rank: infos[rank].code)
    error, code = infos[rank].error, infos[rank].code
    alike = len({info.error for info in infos}) == 1
    return reported_error(code, error if alike else f"{_name_ranks([rank], infos)}: {error}")


def _exchange(info: RankInfo, ranks: Ranks, device: torch.device) -> list[RankInfo]:
    """Exchange the ranks' information as JSON, so that a peer cannot send code."""
    if not is_joined():
        return [info]
    payload = json.dumps({k: v for k, v in asdict(info).items() if v}, ensure_ascii=False).encode()
    if len(payload) > MESSAGE_BYTES:
        raise ValueError(
            f"preflight message must have at most {MESSAGE_BYTES} bytes, not {len(payload)}"
        )
    mine = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    mine[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    rows = [torch.zeros_like(mine, device=device) for _ in range(ranks.world_size)]
    dist.all_gather(rows, mine.to(device))
    return [RankInfo(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in rows]
