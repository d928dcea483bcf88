"""Configure torch's flight recorder, and read and dump its record of collectives.

The recorder keeps the newest collectives of each rank. The trainer names the newest collective in
the message of a timeout, and dumps the whole record for `torchfrtrace`. NCCL's watchdog ends the
process itself, so torch must know the path of the dump before the process group is created.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C import _distributed_c10d

from ddp_trainer.config import RunConfig
from ddp_wire.files import PlantedFileError, open_file, open_folder, open_to_read

FOLDER = "flight-recorder"
"""Folder in the run's directory with the newest dump `rank-N` of each rank that timed out."""
PREFIX = "TORCH_FR_DUMP_TEMP_FILE"
"""Environment variable with the path prefix of torch's dumps, to which torch appends the rank."""
OLD_PREFIX = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
"""Name of the variable `PREFIX` in older versions of torch."""
RECORD_SIZE = "TORCH_FR_BUFFER_SIZE"
"""Environment variable with the number of collectives that the flight recorder keeps."""
OLD_RECORD_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""Name of the variable `RECORD_SIZE` in older versions of torch."""
NEW_NCCL = "TORCH_DIST_USE_NCCL2"
"""Environment variable of torch from 2.15: `0` keeps the older implementation of NCCL's process
group, whose timeouts and flight records this module supports. The newer one has not been tested
with this module on GPUs."""
RECORDED = "2000"
"""Default number of recorded collectives under NCCL. It equals gloo's default. NCCL's own default
depends on torch's version."""

# The members used here are untyped or private.
_dist: Any = dist
_c10d: Any = _distributed_c10d


class Wait(NamedTuple):
    """A collective in which this rank waits."""

    collective: str
    """Name, sizes and number of the collective, for example `in all_reduce of [212] (number
    14)`."""
    seconds: float
    """Seconds since the collective started."""
    limit: float
    """Timeout of the collective in seconds."""


def configure(config: RunConfig, environ: MutableMapping[str, str], *, nccl: bool) -> None:
    """Set the debug levels and the path of dumps, before the process group is created.

    The user's own environment variables take precedence, with one exception: DDP over gloo crashes
    at torch's level DETAIL (a segmentation fault in its logger, torch 2.11 to 2.13).

    Args:
        config: Configuration of the run.
        environ: Environment, changed in place.
        nccl: Whether the run uses NCCL.
    """
    level, directory = config.parallel.debug, config.checkpoint.directory
    wanted: dict[str, str] = {NEW_NCCL: "0"} if nccl else {}
    if nccl and OLD_RECORD_SIZE not in environ:
        wanted[RECORD_SIZE] = RECORDED
    if level != "off":
        wanted |= {"TORCH_DISTRIBUTED_DEBUG": level.upper(), "NCCL_DEBUG": "INFO"}
    if directory:
        own = f"{directory}/{FOLDER}/rank-"
        prefix = environ.get(PREFIX) or environ.get(OLD_PREFIX) or own
        wanted |= {PREFIX: prefix, OLD_PREFIX: prefix}
        dump = Path(prefix + environ.get("RANK", "0"))
        if nccl and prefix == own and not _may_dump(dump, Path(directory)):
            del wanted[PREFIX], wanted[OLD_PREFIX]
    for name, value in wanted.items():
        environ.setdefault(name, value)
    _dist.set_debug_level_from_env()
    if not nccl and _dist.get_debug_level() == _dist.DebugLevel.DETAIL:
        _dist.set_debug_level(_dist.DebugLevel.INFO)


def _may_dump(path: Path, directory: Path) -> bool:
    """Create the folder of torch's dump, because torch does not. Return whether torch may dump.

    torch may not dump if the folder or the file is a link, because torch would follow the link.
    """
    try:
        with open_folder(path.parent, directory):
            os.close(open_to_read(path))
    except PlantedFileError as error:
        print(f"warning: torch writes no flight record: {error}", file=sys.stderr, flush=True)
        return False
    except OSError:
        pass  # The dump of an earlier attempt is rarely there.
    return True


def newest_wait() -> Wait | None:
    """Return the newest collective in which this rank waits, or None without a record."""
    record = json.loads(_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=True))  # noqa: SLF001
    if not record.get("entries"):
        return None
    newest = record["entries"][-1]
    name = newest["profiling_name"].removeprefix("gloo:")
    sizes = " and ".join(map(str, newest["input_sizes"]))
    collective = f"in {name} of {sizes} (number {newest['collective_seq_id']})"
    seconds = time.time() - newest["time_created_ns"] / 1e9
    return Wait(collective, seconds, newest["timeout_ms"] / 1e3)


def dump(rank: int, environ: Mapping[str, str]) -> Path | None:
    """Write this rank's record to torch's own path, and return the path; None without a record."""
    prefix = environ.get(PREFIX)
    if prefix is None:
        return None
    path = Path(f"{prefix}{rank}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(open_file(path, path.parent.parent, flags), "wb") as file:
        file.write(_c10d._dump_fr_trace())  # noqa: SLF001
    return path
