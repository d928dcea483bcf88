"""Open and read the state of a script in memory. Modules that import torch are loaded on demand."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.report.checks import warn
from ddp_trainer.report.own_rank import own_rank
from ddp_wire.variables import Env

if TYPE_CHECKING:
    from ddp_trainer.report.state_keeper import StateKeeper


def open_keeper(state: Callable[[], Any], step: int) -> "StateKeeper | None":
    """Return a writer of the script's state, or None without an agent that offers memory."""
    folder = os.environ.get(Env.RECORDS_DIR)
    if not folder:
        return None
    from ddp_trainer.report.state_keeper import StateKeeper  # noqa: PLC0415 - slow to import

    found = own_rank("the state is not kept in memory")
    if found is None:
        return None
    ranks, attempt = found
    job = os.environ.get(Env.JOB_UID, "")
    return StateKeeper(state, step, Path(folder), attempt=attempt, ranks=ranks, job=job)


def read_kept() -> tuple[int, Any] | None:
    """Return the newest state of all nodes and its step, on every rank; None without one."""
    folder = os.environ.get(Env.RECORDS_DIR)
    if not folder:
        return None
    import torch  # noqa: PLC0415 - slow to import

    from ddp_trainer.checkpoint.script_state import find_state  # noqa: PLC0415
    from ddp_trainer.ranks.collectives import is_joined  # noqa: PLC0415

    found = own_rank("no state in memory is used")
    if found is None:
        return None
    ranks, _ = found
    if ranks.world_size > 1 and not is_joined():
        warn("kept must be called after init_process_group, so no state in memory is used")
        return None
    job = os.environ.get(Env.JOB_UID, "")
    return find_state(Path(folder), ranks, torch.device(group_device()), job=job)


def group_device() -> str:
    """Return the type of the device on which torch's process group communicates."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return "cpu"
    return "cpu" if "cpu:" in str(distributed.get_backend_config()) else "cuda"
