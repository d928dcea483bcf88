"""State of a run as tensors and JSON, and back."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.parallel.dtensor import laid_out_like

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class Snapshot:
    """One moment of a run."""

    model: Tensors
    """Parameters and buffers by name, each storage once."""
    optimizer: Tensors
    """State tensors by `<key>/<parameter name>`."""
    optimizer_rest: dict[str, Any]
    """JSON: the optimizer's state that is no tensor, and its groups."""
    average: Tensors = field(default_factory=dict)
    """Moving average of the weights by parameter name; empty if there is none."""
    compression: Tensors = field(default_factory=dict)
    """State of compressed communication; empty if there is none."""
    state: dict[str, Any] = field(default_factory=dict)
    """JSON: all else."""


def take(model: nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot:
    """The state of model and optimizer as this rank holds it; its tensors are not copies.

    Args:
        model: The bare model.
        optimizer: Over parameters of that model.

    Raises:
        InputError: If either keeps state that is neither tensors nor JSON values.
    """
    return Snapshot(
        model=own_tensors(model),
        optimizer=_optimizer_tensors(model, optimizer),
        optimizer_rest=_optimizer_rest(model, optimizer),
    )


def put_model(model: nn.Module, saved: Tensors) -> None:
    """Loads saved tensors into the bare model, in place.

    Raises:
        InputError: If names or shapes differ.
    """
    own = own_tensors(model)
    for name in sorted(own.keys() ^ saved.keys()):
        where = "checkpoint" if name in own else "model"
        raise InputError(f'checkpoint: "{name}" is not in the {where}; was the task changed?')
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise InputError(
                f'checkpoint: "{name}" has shape {tuple(saved[name].shape)}, the model needs'
                f" {tuple(tensor.shape)}; was the task changed?"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(laid_out_like(saved[name], tensor))


def put_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Tensors,
    rest: dict[str, Any],
    *,
    keep_groups: bool,
) -> None:
    """Loads saved state into an optimizer that was just built.

    Args:
        model: The bare model.
        optimizer: Over parameters of that model.
        tensors: As taken.
        rest: As taken.
        keep_groups: Whether the optimizer's own hyperparameters stay, because the configuration
            states them, or the saved ones return, because they may have evolved.

    Raises:
        InputError: If the saved state is for other parameters.
    """
    own = optimizer.state_dict()
    params = dict(model.named_parameters())
    numbers = {name: number for number, name in _numbered(model, optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for path, value in [*tensors.items(), *rest["state"].items()]:
        key, _, name = path.partition("/")
        if name not in params:
            raise InputError(f'checkpoint: the model has no parameter "{name}"')
        if name not in numbers:
            continue  # another rank's
        state.setdefault(numbers[name], {})[key] = _placed(value, params[name])
    groups = own["param_groups"]
    if len(groups) != len(rest["groups"]):
        raise InputError(
            f"checkpoint: the optimizer has {len(groups)} groups, not {len(rest['groups'])}"
        )
    if not keep_groups:
        groups = [mine | saved for mine, saved in zip(groups, rest["groups"], strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _placed(value: Any, param: Tensor) -> Any:
    """A state value laid out as its parameter; scalars stay as they are."""
    moment = isinstance(value, Tensor) and value.dim() and value.shape == param.shape
    return laid_out_like(value, param.detach()) if moment else value


def own_tensors(model: nn.Module) -> Tensors:
    """The model's parameters and buffers by name; tied weights once, by their first name.

    Raises:
        InputError: If its state holds something else.
    """
    own: Tensors = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise InputError(f'checkpoint: state "{name}" of the model is not a tensor')
        if id(value) not in seen:
            seen.add(id(value))
            own[name] = value
    return own


def _numbered(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Parameter names by the numbers that the optimizer's state dictionary uses."""
    names = {id(param): name for name, param in model.named_parameters()}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param in params:
        if id(param) not in names:
            raise InputError("task: the optimizer has a parameter that is not the model's")
    return {number: names[id(param)] for number, param in enumerate(params)}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    names = _numbered(model, optimizer)
    return {
        f"{key}/{names[number]}": value
        for number, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def _optimizer_rest(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = _numbered(model, optimizer)
    document = optimizer.state_dict()
    state = {
        f"{key}/{names[number]}": _plain(value, key)
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
    raise InputError(f'checkpoint: state "{key}" of the optimizer is neither a tensor nor JSON')
