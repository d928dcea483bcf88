"""What a rank learns from its environment: its place among the ranks, and the contract's values."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process, from the variables that torchrun sets.

    A process that was started without torchrun is a world of one and has no process group.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    """Whether there is a rendezvous to join."""

    @property
    def is_first(self) -> bool:
        """Whether this is global rank 0, which speaks and writes for all."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Ranks":
        """Reads RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.

        Raises:
            InputError: If one is missing while others are there, or is not a number.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return cls()
        numbers = []
        for name in names:
            number = integer(environ, name)
            if number is None:
                raise InputError(f"environment: {name} must be set where RANK or WORLD_SIZE is")
            numbers.append(number)
        rank, world_size, local_rank, local_world_size = numbers
        return cls(rank, world_size, local_rank, local_world_size, launched=True)


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """The variable as a number from 0 up, or nothing where it is unset.

    Raises:
        InputError: If it is something else.
    """
    text = environ.get(name, "")
    if text and not text.isdecimal():
        raise InputError(f'environment: {name} must be a number from 0 up, not "{text}"')
    return int(text) if text else None
