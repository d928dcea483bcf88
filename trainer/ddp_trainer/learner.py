"""What learns: model, optimizer and all that an update reads or changes."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import Precision, RunConfig
from ddp_trainer.numerics.ema import Ema
from ddp_trainer.numerics.guard import Guard
from ddp_trainer.numerics.model import prepare
from ddp_trainer.numerics.optimizer import begin_momentum, build_optimizer
from ddp_trainer.numerics.precision import autocast, grad_scaler
from ddp_trainer.numerics.schedule import peak_factor
from ddp_trainer.numerics.tally import Tally
from ddp_trainer.observe.trace import Trace
from ddp_trainer.parallel.compression import Compression
from ddp_trainer.parallel.local_sgd import LocalSgd
from ddp_trainer.parallel.memory import Footprint
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy, choose_strategy
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.task import HasOptimizer, Task

MOMENTS = 2
"""Numbers per weight that an optimizer keeps, unless it is known better: those of Adam."""


@dataclass(slots=True)
class Learner:
    """Everything that an update reads or changes."""

    strategy: Strategy
    objective: nn.Module
    """Model and loss, wrapped for the process group if there is one."""
    model: nn.Module
    """The bare model."""
    carrier: nn.Parameter
    """Its gradient is the count that the gradients of the sum are divided by."""
    params: list[nn.Parameter]
    """The parameters that are trained."""
    optimizer: torch.optim.Optimizer
    peak_lrs: list[float]
    """Per parameter group."""
    scaler: torch.amp.GradScaler
    guard: Guard
    device: torch.device
    precision: Precision
    clip_norm: float | None
    share: float
    """Factor of sum and count, a constant, which cancels out."""
    seed: int
    rank: int
    tally: Tally
    ema: Ema | None = None
    local_sgd: LocalSgd | None = None
    compression: Compression | None = None
    grad_norm: Tensor | None = None
    """Norm before clipping of the newest update, on the device; only when clipping."""
    trace: Trace = field(default_factory=Trace)

    def autocast(self) -> AbstractContextManager[object]:
        """Context of the forward pass."""
        return autocast(self.precision, self.device)

    def evaluated(self, *, averaged: bool) -> AbstractContextManager[None]:
        """Context of an evaluation: with averaged weights if they are asked for."""
        return self.ema.applied() if self.ema and averaged else nullcontext()

    def gradients(self) -> list[Tensor]:
        """Those that there are now."""
        return [grad for param in self.params if (grad := param.grad) is not None]


def build_learner(task: Task, config: RunConfig, ranks: Ranks, device: torch.device) -> Learner:
    """Prepares, wraps and equips the task's model. Every rank must call it, with equal models.

    Args:
        task: As `build` made it; its model is changed in place.
        config: Resolved.
        ranks: This process's place.
        device: The rank's.
    """
    strategy = choose_strategy(device, config.parallel)
    task.model = prepare(task.model, config, device)
    objective = Objective(task.model, task.loss)
    wrapped = strategy.wrap(objective, compiled=config.compile)
    params = [param for param in task.model.parameters() if param.requires_grad]
    optimizer = _optimizer(task, params, config)
    factor = peak_factor(config.global_batch, config.schedule)
    peak_lrs = [float(group["lr"]) * factor for group in optimizer.param_groups]
    strategy.split(optimizer)
    begin_momentum(optimizer)
    learner = Learner(
        strategy=strategy,
        objective=wrapped,
        model=task.model,
        carrier=objective.carrier,
        params=params,
        optimizer=optimizer,
        peak_lrs=peak_lrs,
        scaler=grad_scaler(config.precision, device),
        guard=Guard(
            strategy,
            optimizer,
            config.nonfinite.policy,
            bundled=not isinstance(task, HasOptimizer),
        ),
        device=device,
        precision=config.precision,
        clip_norm=config.clip_norm,
        share=_share(config, ranks),
        seed=config.seed,
        rank=ranks.rank,
        tally=Tally(device),
    )
    _equip(learner, config)
    return learner


def _share(config: RunConfig, ranks: Ranks) -> float:
    """Keeps gradients of sums in the range of fp16, where they are rounded to it on their way."""
    if config.precision != "fp16" and config.parallel.compression.name == "none":
        return 1.0
    return 1 / config.batch_split(ranks.world_size).per_rank


def footprint(learner: Learner) -> Footprint:
    """What training keeps in memory, over all ranks."""
    weights = sum(param.numel() * param.element_size() for param in learner.model.parameters())
    trained = sum(param.numel() * param.element_size() for param in learner.params)
    moments = MOMENTS
    if isinstance(learner.optimizer, torch.optim.SGD):
        moments = 1 if learner.optimizer.defaults["momentum"] else 0
    average = sum(tensor.nbytes for tensor in learner.ema.state().values()) if learner.ema else 0
    return Footprint(weights, trained, moments * trained, average)


def _optimizer(task: Task, params: list[nn.Parameter], config: RunConfig) -> torch.optim.Optimizer:
    if isinstance(task, HasOptimizer):
        return task.optimizer(params)
    return build_optimizer(params, config.optimizer)


def _equip(learner: Learner, config: RunConfig) -> None:
    """Adds what is switched on."""
    if config.ema.decay is not None:
        learner.ema = Ema(learner.model, config.ema, config.ema.decay)
    parallel = config.parallel
    if not isinstance(learner.objective, DistributedDataParallel):
        return
    if parallel.local_sgd.period is not None:
        learner.local_sgd = LocalSgd(
            learner.params, learner.optimizer, parallel.local_sgd, parallel.local_sgd.period
        )
    if parallel.compression.name != "none":
        learner.compression = Compression(learner.objective, parallel.compression, config.seed)
