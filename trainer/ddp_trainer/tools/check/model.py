"""Check the model and the optimizer of a task, before any sample is read."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from ddp_trainer.checkpoint.snapshot import take
from ddp_trainer.config import StrategyName
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.optimizer import check_closure
from ddp_trainer.parallel.weights import check_weights
from ddp_trainer.task import HasOptimizer, Task


def check_model(model: nn.Module, strategy: StrategyName) -> str | None:
    """Check a model's parameters, and whether it is in training mode.

    Args:
        model: The model of a task.
        strategy: The strategy of the run.

    Returns:
        A sentence if the model is in evaluation mode and has layers that this mode changes, or
        None.

    Raises:
        InputError: If a parameter has no shape yet, or if the strategy cannot train a parameter.
    """
    _check_shapes(model)
    check_weights(model, strategy)
    modes = {module.training for module in model.modules()}
    odd = next((m for m in model.modules() if isinstance(m, (_BatchNorm, _DropoutNd))), None)
    if modes != {False} or odd is None:
        return None
    return (
        f"the model is in evaluation mode, so {type(odd).__name__} has no effect on the training:"
        " call model.train() in build (from_pretrained of transformers returns this mode)"
    )


def check_optimizer(task: Task) -> None:
    """Create the task's own optimizer, if it has one.

    Raises:
        InputError: If the task cannot create it, if it updates other parameters than it received,
            or if no checkpoint can hold its state.
    """
    if not isinstance(task, HasOptimizer):
        return
    named = {n: p for n, p in task.model.named_parameters() if p.requires_grad}
    try:
        optimizer: object = task.optimizer(list(named.values()))
    except (TypeError, ValueError) as error:
        raise InputError(f"task: optimizer: {type(error).__name__}: {error}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            "task: optimizer must return a torch.optim.Optimizer, not"
            f" {type(optimizer).__name__}; set the schedule in the config"
        )
    check_closure(optimizer)
    updated = {id(param) for group in optimizer.param_groups for param in group["params"]}
    missing = [name for name, param in named.items() if id(param) not in updated]
    if missing:
        raise InputError(
            f"task: optimizer leaves out {len(missing)} of {len(named)} parameters, first"
            f' "{missing[0]}": give it all parameters, or call requires_grad_(False) in build'
        )
    if len(updated) > len(named):
        raise InputError(
            f"task: optimizer has {len(updated) - len(named)} parameters that it did not receive:"
            " make them part of the model, and use the list that optimizer is called with"
        )
    _check_state(task.model, optimizer)


def _check_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer with state that no checkpoint can hold, before the first save does.

    One step with gradients of zero creates the state. Only the smallest trained parameter of each
    number of dimensions gets such a gradient, because the state may be larger than the model.
    """
    trained = [param for param in model.parameters() if param.requires_grad]
    some = {param.dim(): param for param in sorted(trained, key=Tensor.numel, reverse=True)}
    weights = [param.detach().clone() for param in some.values()]
    for param in some.values():
        param.grad = torch.zeros_like(param)
    try:
        optimizer.step()
    except Exception:  # noqa: BLE001 (it may need all gradients, or other ones than zeros)
        return
    finally:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for param, weight in zip(some.values(), weights, strict=True):
                param.copy_(weight)
    take(model, optimizer)


def _check_shapes(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f'task: "{name}" of the model has no shape before the first forward pass, which'
                " the strategies need: state its size in build instead of a Lazy module"
            )
