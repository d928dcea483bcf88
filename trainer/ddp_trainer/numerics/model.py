"""Prepare a model before the strategy wraps it."""

import random
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.numerics.buffers import Slot, slots_in
from ddp_trainer.parallel.blocks import repeated_blocks
from ddp_trainer.parallel.layout import CHANNELS_LAST, make_channels_last

_Generators = tuple[tuple[Any, ...], tuple[Any, ...]]
"""States of the global generators of Python and NumPy."""


def prepare(model: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """Apply the configured BatchNorm, formats and activation checkpointing to a model.

    Names of parameters and buffers do not change.

    Args:
        model: The model of the task.
        config: Config of the run.
        device: The device of this rank.

    Raises:
        InputError: If the device or the model does not support a setting.
    """
    if config.sync_batch_norm:
        if device.type != "cuda":
            raise InputError(
                "config: sync_batch_norm needs CUDA; without it each rank normalises by its own"
                " batch, and statistics are averaged over ranks before they are used"
            )
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if config.precision == "fp64":
        model = model.double()
        model.register_forward_pre_hook(_inputs_double, with_kwargs=True)
    if config.channels_last:
        make_channels_last(model)
        model.register_forward_pre_hook(_inputs_channels_last)
    if config.activation_checkpointing:
        _checkpoint_activations(model)
    return model


def _checkpoint_activations(model: nn.Module) -> None:
    """Make repeated blocks store only their inputs and recompute in the backward pass.

    Chen et al. 2016 (arXiv:1604.06174).

    Raises:
        InputError: If the model has no repeated blocks, or has BatchNorm in them.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise InputError(
            "config: activation_checkpointing needs a model with repeated blocks, that is, an"
            " nn.ModuleList or nn.Sequential of modules of one class"
        )
    for block in blocks:
        if norms_in(block):
            raise InputError(
                "config: activation_checkpointing cannot be used with BatchNorm in the repeated"
                " blocks, because each batch would enter its running statistics twice"
            )
        block.forward = partial(_checkpointed, _Block(block))


class _Replay:
    """Context of a recomputation: random numbers and buffers are those before the forward pass.

    The backward pass may enter it more than once. The end of the context restores the present ones.
    torch itself handles its own generators.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self._drawn: _Generators | None = _generators()
        self._values = [(slot, slot.tensor.clone()) for slot in slots]
        self._present: tuple[_Generators | None, list[tuple[Slot, Tensor]]] = (None, [])

    def drop_unused_generators(self) -> None:
        """Forget the random numbers if the forward pass drew none, because setting them is slow."""
        if self._drawn and _equal_generators(self._drawn, _generators()):
            self._drawn = None

    def __enter__(self) -> None:
        held_now = [(slot, _held(slot)) for slot, _ in self._values]
        self._present = (_generators() if self._drawn else None, held_now)
        if self._drawn:
            _set_generators(self._drawn)
        for slot, value in self._values:
            # A copy in place would overwrite numbers that the backward pass still reads.
            again, held = value.clone(), _held(slot)
            is_param = isinstance(held, nn.Parameter)
            setattr(slot.module, slot.key, _frozen(again) if is_param else again)

    def __exit__(self, *_: object) -> None:
        generators, held = self._present
        if generators:
            _set_generators(generators)
        for slot, tensor in held:
            setattr(slot.module, slot.key, tensor)

    def keep_changed(self) -> list[Slot]:
        """Keep only the buffers of modules of which one has changed. Return their locations."""
        changed = {slot.module for slot, value in self._values if not _equal(value, slot.tensor)}
        self._values = [(slot, value) for slot, value in self._values if slot.module in changed]
        return [slot for slot, _ in self._values]


class _Block:
    """A block that is computed twice, and its live buffers: those that its forward pass changes.

    The first pass in training mode finds the live buffers by their values. So the other passes copy
    no constant tables and no frozen weights, which can be large.
    """

    def __init__(self, block: nn.Module) -> None:
        self.forward = block.forward
        self._block = block
        self._slots = slots_in(block)
        self._live: list[Slot] | None = None

    def compute(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a forward pass that stores only its inputs.

        Raises:
            InputError: If a buffer changes, but did not change in the first pass.
        """
        untried = self._live is None and self._block.training
        quiet = [slot for slot in self._slots if self._live is not None and slot not in self._live]
        versions = [_version(slot) for slot in quiet]
        replay = _Replay(self._slots if untried else self._live or [])
        result = checkpoint(
            self.forward,
            *inputs,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), replay),
            **named,
        )
        replay.drop_unused_generators()
        if untried:
            self._live = replay.keep_changed()
        for slot, version in zip(quiet, versions, strict=True):
            if _version(slot) != version:
                raise InputError(
                    f'config: activation_checkpointing: the buffer "{slot.name}" of a repeated'
                    f" block of class {type(self._block).__name__} began to change after the first"
                    " pass, so it would change twice in each pass"
                )
        return result


def _checkpointed(block: _Block, *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return block.forward(*inputs, **named)
    if torch.compiler.is_compiling():  # Compiled recomputations see the same numbers anyway.
        return checkpoint(block.forward, *inputs, use_reentrant=False, **named)
    return block.compute(inputs, named)


def _generators() -> _Generators:
    """Return the states of the global generators of Python and NumPy."""
    state = np.random.get_state(legacy=True)  # noqa: NPY002 - user code draws from this generator
    return random.getstate(), cast("tuple[Any, ...]", state)


def _set_generators(states: _Generators) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - user code draws from this generator


def _equal_generators(one: _Generators, other: _Generators) -> bool:
    (python, (kind, keys, *rest)), (other_python, (other_kind, other_keys, *other_rest)) = (
        one,
        other,
    )
    same = (python, kind, rest) == (other_python, other_kind, other_rest)
    return same and np.array_equal(keys, other_keys)


def _held(slot: Slot) -> Tensor:
    """Return the tensor itself that the module stores, which may be a parameter."""
    found: Tensor = getattr(slot.module, slot.key)
    return found


def _version(slot: Slot) -> tuple[int, int]:
    """Return numbers that change if a pass replaces the tensor or writes into it."""
    held = _held(slot)
    return id(held), held._version  # noqa: SLF001 - torch has no public name for it


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


def _inputs_double(
    _model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs converted to fp64, including tensors in dictionaries and lists."""
    return tree_map_only(Tensor, _double, inputs), tree_map_only(Tensor, _double, named)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _inputs_channels_last(_model: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value.contiguous(memory_format=CHANNELS_LAST[value.dim()])
        if isinstance(value, Tensor) and value.dim() in CHANNELS_LAST
        else value
        for value in inputs
    )
