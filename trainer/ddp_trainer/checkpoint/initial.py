"""Weights to begin a run with: no position, no optimizer state."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from ddp_trainer.checkpoint.format import MODEL, names_in
from ddp_trainer.checkpoint.load import broadcast_tensors, read_tensors
from ddp_trainer.checkpoint.snapshot import Tensors, own_tensors
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.collectives import on_first_rank

SHOWN = 5
"""Most names in a sentence."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How weights fit a model, by name."""

    path: str
    loaded: list[str]
    missing: list[str]
    """In the model only: these keep the values that they were built with."""
    unexpected: list[str]
    """In the file only."""
    reshaped: list[str]
    """In both, with another shape in each."""

    @property
    def whole(self) -> bool:
        """Whether every name fits."""
        return not (self.missing or self.unexpected or self.reshaped)

    def sentence(self) -> str:
        """What does not fit."""
        parts = [
            f"{len(names)} {what} ({', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''})"
            for what, names in (
                ("missing in the file", self.missing),
                ("unknown to the model", self.unexpected),
                ("of another shape", self.reshaped),
            )
            if names
        ]
        return f"init_from {self.path}: {len(self.loaded)} tensors fit, {', '.join(parts)}"


def load_initial(model: nn.Module, source: str, device: torch.device, *, strict: bool) -> Fit:
    """Loads weights into a model, in place. Every rank must call it; rank 0 reads.

    Args:
        model: In host memory, not wrapped yet.
        source: A safetensors file, a checkpoint, or a run's directory, whose newest one is taken.
        device: The run's device, where the tensors travel.
        strict: Whether every name must fit.

    Raises:
        InputError: On every rank, if there are no such weights, or they do not fit as they must.
    """
    read: Tensors = {}

    def find() -> str:
        path = _file(Path(source))
        try:
            read.update(read_tensors(path))
        except (OSError, SafetensorError) as error:
            raise InputError(f"config: init_from: cannot read {path}: {error}") from error
        return str(path)

    path = on_first_rank(find, device)
    own, given = own_tensors(model), broadcast_tensors(read, device)
    fitting = [n for n in own if n in given and own[n].shape == given[n].shape]
    fit = Fit(
        path=path,
        loaded=fitting,
        missing=sorted(own.keys() - given.keys()),
        unexpected=sorted(given.keys() - own.keys()),
        reshaped=sorted((own.keys() & given.keys()) - set(fitting)),
    )
    if not fitting or (strict and not fit.whole):
        raise InputError(f"config: {fit.sentence()}")
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(given[name])
    return fit


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    names = [name for name in names_in(path) if not name.suffix]
    file = (path / str(names[-1]) if names else path) / MODEL
    if not file.is_file():
        raise InputError(
            f"config: init_from must be a safetensors file, a checkpoint or a run's directory,"
            f" which {path} is not"
        )
    return file
