"""Load the initial weights of a run (`init_from`), without position and optimizer state."""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from ddp_trainer.checkpoint.format import names_in
from ddp_trainer.checkpoint.named_weights import Weights, WeightsError
from ddp_trainer.checkpoint.reading import kept
from ddp_trainer.checkpoint.remote import process
from ddp_trainer.checkpoint.remote.fetching import local_copy
from ddp_trainer.checkpoint.snapshot import Tensors, own_tensors
from ddp_trainer.checkpoint.stream import TensorStream
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.checkpoint.weights import open_weights
from ddp_trainer.config.addresses import is_url
from ddp_trainer.errors import InputError
from ddp_trainer.names import plain_name
from ddp_trainer.ranks.collectives import on_first_rank

T = TypeVar("T")

MAX_NAMES = 5
"""Maximum number of tensor names per group of differences in a message."""


@dataclass(frozen=True, slots=True)
class WeightMatch:
    """Comparison of the tensors in a file with the tensors of a model, by name."""

    path: str
    loaded: list[str]
    missing: list[str]
    """Names of tensors only in the model. These tensors keep their initial values."""
    unexpected: list[str]
    """Names of tensors only in the file."""
    reshaped: list[str]
    """Names of tensors in both, but with different shapes."""

    @property
    def complete(self) -> bool:
        """Whether all tensors of the file and the model match."""
        return not (self.missing or self.unexpected or self.reshaped)

    def sentence(self) -> str:
        """Return a message that lists the differences."""
        parts = [
            f"{len(names)} {kind} ({', '.join(names[:MAX_NAMES])}"
            f"{', …' if len(names) > MAX_NAMES else ''})"
            for kind, names in (
                ("missing in the file", self.missing),
                ("unknown to the model", self.unexpected),
                ("of another shape", self.reshaped),
            )
            if names
        ]
        return f"init_from {self.path}: {len(self.loaded)} tensors fit, {', '.join(parts)}"


def load_initial(
    model: nn.Module,
    source: str,
    device: torch.device,
    *,
    strict: bool,
    sleep: Sleep = time.sleep,
) -> WeightMatch:
    """Load weights into a model in place. Every rank must call this; rank 0 reads the file.

    Args:
        model: A model in host memory, before DDP wraps it.
        source: A safetensors file, a file of torch.save, a DCP folder, a checkpoint, or a run's
            directory, or its address. For a run's directory, its newest checkpoint is used.
        device: The run's device, for the broadcast of the tensors.
        strict: Whether every tensor must match.
        sleep: Function that waits between two tries to read.

    Raises:
        InputError: On every rank, if the weights are missing, or do not match as required.
        VolumeError: On every rank, if the volume fails.
    """

    def try_to(act: Callable[[], T]) -> T:
        try:
            return retried(act, sleep)
        except OSError as error:
            sentence = f"config: init_from: cannot read {source}: {error}"
            raise volume_error(sentence, error) from error
        except WeightsError as error:
            raise InputError(f"config: init_from: {error}") from error
        except SafetensorError as error:
            raise InputError(f"config: init_from: cannot read {source}: {error}") from error

    with contextlib.ExitStack() as stack:
        return _load(model, source, device, stack, try_to, strict=strict)


def _load(
    model: nn.Module,
    source: str,
    device: torch.device,
    stack: contextlib.ExitStack,
    try_to: Callable[[Callable[[], Any]], Any],
    *,
    strict: bool,
) -> WeightMatch:
    """Load weights. The arguments are those of `load_initial`, and the stack keeps the source."""
    opened: list[Weights] = []  # Only rank 0 opens the source.

    def find() -> tuple[str, list[list[Any]]]:
        copy = stack.enter_context(
            local_copy(source, command="config: init_from", fetch=process.download)
        )
        path = _newest(copy)
        stack.enter_context(kept(path))
        opened.append(open_weights(path))
        return source if is_url(source) else str(opened[-1].path), opened[-1].described

    path, described = on_first_rank(lambda: try_to(find), device)

    def read(names: list[str]) -> Tensors:
        return opened[-1].read(names)

    given = TensorStream(read, described, device, try_to)
    return _put_fitting(model, given, path, strict=strict)


def _put_fitting(model: nn.Module, given: TensorStream, path: str, *, strict: bool) -> WeightMatch:
    """Copy the given tensors that fit into the model. The parameters are those of `load_initial`.

    Raises:
        InputError: If they do not match as required.
    """
    own = own_tensors(model)
    places = _places(model, given)
    match = _compared(path, own, {places.get(n, n): shape for n, shape in given.shapes.items()})
    if not match.loaded or (strict and not match.complete):
        raise InputError(f"config: {match.sentence()}")
    fitting = set(match.loaded)
    with torch.no_grad():
        for name, tensor in given.items():
            place = places.get(name, name)
            if place in fitting:
                own[place].copy_(tensor)
    return match


def _compared(path: str, own: Tensors, shapes: dict[str, tuple[int, ...]]) -> WeightMatch:
    """Compare the names and shapes of given tensors with those of the model."""
    loaded = [name for name in own if name in shapes and own[name].shape == shapes[name]]
    return WeightMatch(
        path=path,
        loaded=loaded,
        missing=sorted(own.keys() - shapes.keys()),
        unexpected=sorted(shapes.keys() - own.keys()),
        reshaped=sorted((own.keys() & shapes.keys()) - set(loaded)),
    )


def _newest(path: Path) -> Path:
    """Return the newest checkpoint of a run's directory, or the path itself."""
    names = [name for name in names_in(path) if not name.suffix]
    return path / str(names[-1]) if names else path


def _places(model: nn.Module, given: Iterable[str]) -> dict[str, str]:
    """Return the name in a checkpoint of each given tensor that the model has by another name.

    Other programs store tied weights under any of their names or under all, and compiled models
    with torch.compile's prefix.
    """
    first: dict[int, str] = {}
    names = {
        plain_name(name): first.setdefault(id(value), plain_name(name))
        for name, value in model.state_dict(keep_vars=True).items()
    }
    return {name: names[plain] for name in given if (plain := plain_name(name)) in names}
