"""Convert the state of a run to tensors and JSON, and back.

Names make a snapshot independent of strategy and world size. A tensor has the name of its parameter
or buffer in the bare model, without prefixes of a wrapper. A tensor of the optimizer is named by
its state key and its parameter's name, because torch's numbers depend on the order of parameters
and on the rank. Tied weights appear once, under their first name. Everything else is JSON, so that
a checkpoint cannot contain code.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.names import NamedTensors, TensorParts, parts_of, plain_name
from ddp_trainer.parallel.dtensor import copy_parts
from ddp_trainer.parallel.layout import is_moment_of
from ddp_trainer.saved_state import SavedState

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class Snapshot:
    """State of learner and task after one update, as tensors and JSON."""

    model: NamedTensors
    """Parameters and buffers by name. Tied weights appear once."""
    optimizer: NamedTensors
    """State tensors by `<key>/<parameter name>`."""
    optimizer_rest: dict[str, Any]
    """Optimizer state that is not a tensor, and the parameter groups, as JSON."""
    average: NamedTensors = field(default_factory=dict)
    """Moving average of the weights by parameter name; empty without EMA."""
    compression: NamedTensors = field(default_factory=dict)
    """State of gradient compression; empty without compression."""
    buffers: NamedTensors = field(default_factory=dict)
    """Buffers by `<rank>/<name>`; empty unless each rank keeps its own buffers."""
    task: NamedTensors = field(default_factory=dict)
    """Tensors of the task's own state."""
    task_rest: Any = None
    """The task's own state as JSON with references to its tensors; None without own state."""

    def nbytes(self) -> int:
        """Return the size of all tensors in bytes. They must not be streams."""
        parts = (
            self.model, self.optimizer, self.average, self.compression, self.buffers, self.task
        )  # fmt: skip
        return sum(tensor.nbytes for part in parts for _, tensor in part.items())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint: the position of a run, and the snapshot after the same update."""

    state: SavedState
    snapshot: Snapshot


def take(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors | None = None
) -> Snapshot:
    """Return this rank's state of model and optimizer, without copying tensors.

    Args:
        model: The bare model.
        optimizer: An optimizer of that model's parameters.
        tensors: Parameters and buffers of the model by name, if the model cannot be asked now.

    Raises:
        InputError: If the state contains a value that is neither a tensor nor JSON.
    """
    named = model.named_parameters() if tensors is None else tensors.items()
    numbers = _numbered(named, optimizer)
    return Snapshot(
        model=own_tensors(model) if tensors is None else tensors,
        optimizer=_optimizer_tensors(numbers, optimizer),
        optimizer_rest=_optimizer_rest(numbers, optimizer),
    )


@torch.no_grad()
def put_model(model: nn.Module, saved: NamedTensors) -> None:
    """Load saved tensors into the bare model, in place, one after another.

    Raises:
        InputError: If names or shapes differ.
    """
    own = own_tensors(model)
    for name in sorted(own.keys() ^ {plain_name(name) for name in saved}):
        where = "checkpoint" if name in own else "model"
        raise InputError(
            f'checkpoint: tensor "{name}" is not in the {where}; the task must build the same model'
            " in every attempt"
        )
    for tensor in parts_of(saved):
        name = plain_name(tensor.name)
        if tensor.shape != own[name].shape:
            raise InputError(
                f'checkpoint: tensor "{name}" has shape {tensor.shape}, but the model needs'
                f" {tuple(own[name].shape)}; the task must build the same model in every attempt"
            )
        copy_parts(own[name], tensor.parts)


def put_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: NamedTensors,
    rest: dict[str, Any],
    *,
    keep_groups: bool,
) -> None:
    """Load saved state into a new optimizer.

    Args:
        model: The bare model.
        optimizer: An optimizer of that model's parameters.
        tensors: `optimizer` of the snapshot.
        rest: `optimizer_rest` of the snapshot.
        keep_groups: Whether the optimizer keeps its hyperparameters, because the config sets them.
            Otherwise the saved ones are restored, because they may have changed during training.

    Raises:
        InputError: If the saved state belongs to other parameters.
    """
    own = optimizer.state_dict()
    params = {plain_name(name): param for name, param in model.named_parameters()}
    numbers = {name: number for number, name in _numbered(params.items(), optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for path, value in chain(
        ((tensor.name, tensor) for tensor in parts_of(tensors)), rest["state"].items()
    ):
        key, _, name = plain_name(path).partition("/")
        if name not in params:
            raise InputError(
                f'checkpoint: the optimizer state is for parameter "{name}", which is not in the'
                " model"
            )
        # A parameter without a number belongs to another rank.
        placed = _placed(key, value, params[name], is_own=name in numbers)
        if name in numbers:
            state.setdefault(numbers[name], {})[key] = placed
    groups = own["param_groups"]
    if len(groups) != len(rest["groups"]):
        raise InputError(
            f"checkpoint: the saved optimizer has {len(rest['groups'])} parameter groups, but this"
            f" optimizer has {len(groups)}"
        )
    if not keep_groups:
        pairs = zip(groups, rest["groups"], strict=True)
        groups = [mine | _of_types(mine, saved) for mine, saved in pairs]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    of_params = {params[name]: state.get(number, {}) for name, number in numbers.items()}
    _put_types(optimizer, of_params)


def _of_types(mine: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return saved hyperparameters, as tensors where the optimizer has tensors."""
    return {
        key: mine[key].new_tensor(value) if isinstance(mine.get(key), Tensor) else value
        for key, value in saved.items()
    }


def _put_types(optimizer: torch.optim.Optimizer, saved: dict[nn.Parameter, dict[str, Any]]) -> None:
    """Give the state of an optimizer the types with which it was saved.

    torch casts all state of a parameter to its type, also fp32 copies of bf16 weights, counters
    and masks. An optimizer with its own `load_state_dict` decides for itself.

    Args:
        optimizer: The optimizer, after it has loaded the state.
        saved: The saved state by parameter.
    """
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return
    for param, values in saved.items():
        state = optimizer.state[param]
        for key, value in values.items():
            # torch chooses type and device of `step` by the kind of the optimizer.
            if key != "step" and isinstance(value, Tensor) and state[key].dtype != value.dtype:
                state[key] = value.to(param.device)


def _placed(key: str, value: Any, param: Tensor, *, is_own: bool) -> Any:
    """Return a state value in its parameter's layout, if both have the same number of elements.

    Args:
        key: Name of the value.
        value: The value, or a tensor in parts.
        param: The parameter to which it belongs.
        is_own: Whether this rank needs the value. Its parts are read in any case.
    """
    if not isinstance(value, TensorParts):
        return value
    if not is_own:
        for _ in value.parts:
            pass
        return None
    if is_moment_of(value.shape, key, param):
        placed = torch.empty_like(param.detach(), dtype=value.dtype)
        copy_parts(placed, value.parts)
        return placed
    return torch.cat([numbers for _, numbers in value.parts]).reshape(value.shape)


def own_tensors(model: nn.Module) -> Tensors:
    """Return parameters and buffers of the model by name. Tied weights appear once.

    Raises:
        InputError: If the model's state holds a value that is not a tensor.
    """
    own: Tensors = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise InputError(f'checkpoint: state "{name}" of the model is not a tensor')
        if id(value) not in seen:
            seen.add(id(value))
            own[plain_name(name)] = value
    return own


def _numbered(
    named: Iterable[tuple[str, Tensor]], optimizer: torch.optim.Optimizer
) -> dict[int, str]:
    """Return the parameter names by their number in the optimizer's state dictionary."""
    names = {id(param): plain_name(name) for name, param in named}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param in params:
        if id(param) not in names:
            raise InputError("task: the optimizer has a parameter that is not in the model")
    return {number: names[id(param)] for number, param in enumerate(params)}


def _optimizer_tensors(names: dict[int, str], optimizer: torch.optim.Optimizer) -> Tensors:
    return {
        f"{key}/{_owner(names, number)}": value
        for number, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def _owner(names: dict[int, str], number: Any) -> str:
    """Return the name of the parameter to which state of an optimizer belongs."""
    if number not in names:
        raise InputError(
            f'checkpoint: state "{number}" of the optimizer belongs to no parameter: keep it in the'
            " state of a parameter, or in the state of the task (state_dict and load_state_dict)"
        )
    return names[number]


def _optimizer_rest(names: dict[int, str], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    document = optimizer.state_dict()
    state = {
        f"{key}/{_owner(names, number)}": _plain(value, key)
        for number, values in document["state"].items()
        for key, value in values.items()
        if not isinstance(value, Tensor)
    }
    groups = [
        {key: _plain(value, key) for key, value in group.items() if key != "params"}
        for group in document["param_groups"]
    ]
    return {"state": state, "groups": groups}


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(item, key) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(
        f'checkpoint: state "{key}" of the optimizer is neither a tensor nor a JSON value: keep'
        " each tensor under a key of its own"
    )
