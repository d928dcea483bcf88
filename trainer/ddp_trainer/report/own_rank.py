"""Read the rank and the attempt of a script. Modules that import pydantic are loaded on demand."""

import os
from typing import TYPE_CHECKING

from ddp_trainer.report.checks import warn
from ddp_wire.variables import Env

if TYPE_CHECKING:
    from ddp_trainer.ranks.environment import Ranks


def own_rank(refusal: str) -> "tuple[Ranks, int] | None":
    """Return this process's rank and the number of its attempt, from the environment.

    Args:
        refusal: Start of the warning if a variable is not valid. Then the result is None.
    """
    from ddp_trainer.errors import InputError  # noqa: PLC0415 - slow to import
    from ddp_trainer.ranks.environment import Ranks, integer  # noqa: PLC0415

    try:
        return Ranks.from_environment(os.environ), integer(os.environ, Env.ATTEMPT) or 0
    except InputError as error:
        warn(f"{refusal}: {error}")
        return None
