"""Read torch's record of the collectives of this process: its flight recorder."""

import json
from collections.abc import Callable
from typing import Any

_FUNCTIONS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Names of torch's functions that return a record. NCCL has its own record, which some versions of
the general function do not return. A build without CUDA has only the general function."""
_NCCL = "nccl:"


def newest_collectives(most: int) -> list[dict[str, Any]]:
    """Return the newest collectives of the default process group, in the order of their start.

    With NCCL the host starts a collective before earlier ones have ended. All of them wait for the
    first unfinished collective, so the list ends with that one. The list is empty if torch has no
    record.

    Args:
        most: Maximum number of collectives.
    """
    own = [entry for entry in _entries() if entry["pg_id"] == 0 and not entry["is_p2p"]]
    # Entries of gloo never get another state than "scheduled".
    unfinished = [at for at, entry in enumerate(own) if _is_unfinished_nccl(entry)]
    return (own[: unfinished[0] + 1] if unfinished else own)[-most:]


def collective_name(entry: dict[str, Any]) -> str:
    """Return the name of a collective, followed by the sizes of its tensors."""
    name = str(entry["profiling_name"]).rpartition(":")[2]
    return f"{name} of {' and '.join(map(str, entry['input_sizes']))}"


def _is_unfinished_nccl(entry: dict[str, Any]) -> bool:
    return str(entry["profiling_name"]).startswith(_NCCL) and entry["state"] != "completed"


def _entries() -> list[dict[str, Any]]:
    try:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415 (torch may be absent)
    except ImportError:
        return []
    for name in _FUNCTIONS:
        dump: Callable[..., str] | None = getattr(c10d, name, None)
        found = _read(dump) if dump is not None else []
        if found:
            return found
    return []


def _read(dump: Callable[..., str]) -> list[dict[str, Any]]:
    try:
        found = json.loads(dump(includeCollectives=True, onlyActive=False))
    except (RuntimeError, ValueError):
        return []
    return found.get("entries") or []
