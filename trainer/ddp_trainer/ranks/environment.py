"""Read the rank's environment variables: torchrun's, and integers of the wire contract."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank and the number of ranks, from the variables that torchrun sets.

    A process that torchrun did not start is the only rank and has no process group.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    """Whether a launcher started this process, so that there is a rendezvous to join."""

    @property
    def is_first(self) -> bool:
        """Whether this is global rank 0, which prints and writes on behalf of all ranks."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Ranks":
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.

        Raises:
            InputError: If only some of the variables are set, or if one is not a number.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return cls()
        numbers = []
        for name in names:
            number = integer(environ, name)
            if number is None:
                raise InputError(f"environment: {name} must be set when RANK or WORLD_SIZE is set")
            numbers.append(number)
        rank, world_size, local_rank, local_world_size = numbers
        return cls(rank, world_size, local_rank, local_world_size, launched=True)


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a non-negative integer, or None if it is unset or empty.

    Raises:
        InputError: If the variable has any other value.
    """
    text = environ.get(name, "")
    if text and not text.isdecimal():
        raise InputError(f'environment: {name} must be a non-negative integer, not "{text}"')
    return int(text) if text else None
