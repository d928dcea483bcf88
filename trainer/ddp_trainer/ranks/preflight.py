"""All ranks compare what must be alike, in one exchange, before anything is trained.

What differs shows otherwise as a hang in the first collective, or as a loss that is a little wrong.
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

from ddp_trainer.errors import InputError, Refusal, refusal
from ddp_trainer.ranks.collectives import is_joined
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.topology import Place
from ddp_wire.contract import ExitCode

MESSAGE_BYTES = 2048
"""What each rank sends: JSON of a fixed length, so that one exchange is enough."""
_TEXT_CHARACTERS = 400
_DRIVER_FILE = Path("/proc/driver/nvidia/version")

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Facts:
    """What one rank tells of itself."""

    node: str
    config: str = ""
    """Hash of task and resolved configuration."""
    data: str = ""
    """Fingerprint of the data sets."""
    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    driver: str = ""
    """Version of NVIDIA's kernel module; empty without a GPU."""
    gpu: str = ""
    """Model and compute capability; empty without one."""
    host: str = ""
    rack: str = ""
    zone: str = ""
    """Where it is; this may differ."""
    error: str = ""
    """Why this rank cannot go on."""
    code: int = 0
    """Exit code for that."""

    @property
    def place(self) -> Place:
        """Where this rank is."""
        return Place(self.host, self.rack, self.zone)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One thing that must be alike."""

    fact: str
    noun: str
    must: bool
    """Whether nothing can make up for a difference; otherwise a new attempt might, elsewhere."""
    shown: bool = True
    """Whether the values mean something to a person."""


_RULES = (
    _Rule("config", "a configuration", must=True, shown=False),
    _Rule("data", "data", must=True),
    _Rule("python", "Python", must=False),
    _Rule("torch", "torch", must=False),
    _Rule("cuda", "CUDA", must=False),
    _Rule("nccl", "NCCL", must=False),
    _Rule("driver", "NVIDIA driver", must=False),
    _Rule("gpu", "GPU", must=False),
)


def facts_of(device: torch.device, document: Any, data: str, place: Place) -> Facts:
    """This rank's facts.

    Args:
        device: The rank's.
        document: JSON: task and resolved configuration.
        data: Fingerprint of the data sets.
        place: Where it is.
    """
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    text = json.dumps(document, sort_keys=True).encode()
    return Facts(
        node=socket.gethostname(),
        config=hashlib.blake2b(text, digest_size=8).hexdigest(),
        data=data,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "",
        driver=_driver() if on_gpu else "",
        gpu=f"{properties.name} ({properties.major}.{properties.minor})" if properties else "",
        host=place.host,
        rack=place.rack,
        zone=place.zone,
    )


def _driver() -> str:
    """Version of NVIDIA's kernel module, where it says it."""
    try:
        told = _DRIVER_FILE.read_text()
    except OSError:
        return ""
    # As in: NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 ...
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", told)
    return version[0] if version else ""


def build_alike(
    build: Callable[[], tuple[Built, Facts]],
    ranks: Ranks,
    device: torch.device,
    *,
    allow_mixed: bool,
) -> tuple[Built, list[Facts], list[str]]:
    """Builds what each rank needs, and returns once all have it and are alike. Every rank calls it.

    Args:
        build: Gives the thing, and this rank's facts.
        ranks: This process's place.
        device: The run's device, by which facts travel.
        allow_mixed: Whether different versions or GPUs are only told.

    Returns:
        What was built, everybody's facts by rank, and one sentence for each difference that is
        allowed.

    Raises:
        Refusal: On every rank, with the rank that it lies in, if one could not build or is
            different.
        Exception: What `build` raised, on the rank on which it did.
    """
    failure: Exception | None = None
    built: Built | None = None
    try:
        built, facts = build()
    except Exception as error:  # noqa: BLE001 - it is raised again, after the others know
        failure, facts = error, _facts_of_failure(error)
    everyone = _exchange(facts, ranks, device)
    if failure is not None and not isinstance(failure, Refusal):
        raise failure
    found = _first_error(everyone)
    if found is not None:
        raise found
    warnings = []
    for sentence, must in differences(everyone):
        if must:
            raise InputError(f"preflight: {sentence}")
        if not allow_mixed:
            raise Refusal(f"preflight: {sentence}; parallel.allow_mixed permits it")
        warnings.append(sentence)
    if built is None:
        raise RuntimeError("a rank that did not fail has built nothing")
    return built, everyone, warnings


def differences(everyone: Sequence[Facts]) -> list[tuple[str, bool]]:
    """What is not alike, in the order of its weight.

    Args:
        everyone: Facts by rank.

    Returns:
        Sentences that name the ranks that most others differ from, each with whether nothing can
        make up for it.
    """
    found = []
    for rule in _RULES:
        values = [str(getattr(facts, rule.fact)) for facts in everyone]
        # Of two that are equally frequent the one of the lower rank is the usual one.
        usual, count = Counter(values).most_common(1)[0]
        if count == len(values):
            continue
        odd = [rank for rank, value in enumerate(values) if value != usual]
        who = _who(odd, everyone)
        verb = "has" if len(odd) == 1 else "have"
        theirs = values[odd[0]] or "none"
        if rule.shown:
            sentence = f"{who} {verb} {rule.noun} {theirs}, the others {usual or 'none'}"
        else:
            sentence = f"{who} {verb} {rule.noun} that is not that of the others"
        found.append((sentence, rule.must))
    return found


def _who(odd: Sequence[int], everyone: Sequence[Facts]) -> str:
    if len(odd) == 1:
        return f"rank {odd[0]} on {everyone[odd[0]].node}"
    nodes = sorted({everyone[rank].node for rank in odd})
    shown = ", ".join(map(str, odd[:8])) + (" …" if len(odd) > 8 else "")  # noqa: PLR2004
    return f"ranks {shown} on {nodes[0]}" if len(nodes) == 1 else f"ranks {shown}"


def _facts_of_failure(error: Exception) -> Facts:
    known = isinstance(error, Refusal)
    text = str(error) if known else f"{type(error).__name__}: {error}".splitlines()[0]
    code = error.code if isinstance(error, Refusal) else ExitCode.FAILED
    return Facts(socket.gethostname(), error=text[:_TEXT_CHARACTERS] or "failed", code=code)


def _first_error(everyone: Sequence[Facts]) -> Refusal | None:
    failed = [rank for rank, facts in enumerate(everyone) if facts.error]
    if not failed:
        return None
    # A failure that may pass comes first: the run could then still succeed.
    rank = min(failed, key=lambda rank: everyone[rank].code)
    error, code = everyone[rank].error, everyone[rank].code
    alike = len({facts.error for facts in everyone}) == 1
    return refusal(code, error if alike else f"{_who([rank], everyone)}: {error}")


def _exchange(facts: Facts, ranks: Ranks, device: torch.device) -> list[Facts]:
    """Everybody's facts by rank: JSON, so that a peer's message is only ever data."""
    if not is_joined():
        return [facts]
    payload = json.dumps({k: v for k, v in asdict(facts).items() if v}, ensure_ascii=False).encode()
    if len(payload) > MESSAGE_BYTES:
        raise ValueError(f"facts of {len(payload)} bytes do not fit the message")
    mine = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    mine[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    rows = [torch.zeros_like(mine, device=device) for _ in range(ranks.world_size)]
    dist.all_gather(rows, mine.to(device))
    return [Facts(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in rows]
