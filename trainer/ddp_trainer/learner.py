"""Model, optimizer and all other state that an update reads or changes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.checkpoint.gate import Gate
from ddp_trainer.config import Precision, RunConfig
from ddp_trainer.numerics.buffers import BufferShapes, LiveBuffers
from ddp_trainer.numerics.ema import Ema
from ddp_trainer.numerics.guard import Guard
from ddp_trainer.numerics.model import prepare
from ddp_trainer.numerics.optimizer import build_optimizer, check_closure, init_momentum
from ddp_trainer.numerics.precision import autocast, grad_scaler
from ddp_trainer.numerics.schedule import peak_factor
from ddp_trainer.numerics.totals import LossParts, LossTotals
from ddp_trainer.observe.trace import Trace
from ddp_trainer.parallel.compression import Compression
from ddp_trainer.parallel.local_sgd import LocalSgd, average_over_ranks
from ddp_trainer.parallel.memory import Footprint, Size
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy, choose_strategy
from ddp_trainer.parallel.weights import check_weights
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.task import HasOptimizer, Task

MOMENTS = 2
"""Number of state values per weight that an unknown optimizer is assumed to have, as in Adam."""


@dataclass(slots=True)
class Learner:
    """All state that an update reads or changes."""

    strategy: Strategy
    objective: nn.Module
    """Model and loss as one module, wrapped by the strategy."""
    model: nn.Module
    """The bare model, without the strategy's wrapper."""
    count_param: nn.Parameter
    """Parameter that is always zero. Its gradient carries the loss count (see `Objective`)."""
    params: list[nn.Parameter]
    """The trained parameters."""
    optimizer: torch.optim.Optimizer
    peak_lrs: list[float]
    """Peak learning rate of each parameter group of the optimizer."""
    scaler: torch.amp.GradScaler
    guard: Guard
    device: torch.device
    precision: Precision
    clip_norm: float | None
    sum_scale: float
    """Constant factor of loss sum and count. It cancels out in the mean."""
    seed: int
    rank: int
    totals: LossTotals
    parts: LossParts
    shapes: BufferShapes
    buffers: LiveBuffers | None = None
    """Policy for buffers that the loss changes. None in a single process, and for models without
    such buffers."""
    ema: Ema | None = None
    local_sgd: LocalSgd | None = None
    compression: Compression | None = None
    grad_norm: Tensor | None = None
    """Gradient norm of the newest update before clipping, on the device. None without clipping."""
    trace: Trace = field(default_factory=Trace)
    gate: Gate = field(default_factory=Gate)
    """Gate that is open while this rank changes no state."""
    finish_passes: Callable[[], None] = field(default=lambda: None)
    """Function that waits for the reductions of an update on a GPU, if its state is kept."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of the forward pass."""
        return autocast(self.precision, self.device)

    @contextmanager
    def evaluated(self, *, averaged: bool) -> Iterator[None]:
        """Return the context of an evaluation, which uses the averaged weights if configured."""
        with self.ema.applied() if self.ema and averaged else nullcontext():
            try:
                yield
            finally:
                # Before the weights are restored: the next update must gather them again.
                self.strategy.free_gathered(self.model)

    def synchronize(self) -> list[str]:
        """Give all ranks the same weights, moments and averaged weights. Every rank must call it.

        Only local SGD makes the ranks differ. The averaged weights (EMA) are linear in the weights,
        so one mean over the ranks at this point replaces a mean after each period.

        Returns:
            Names of the buffers that the loss has begun to change since the last call.

        Raises:
            InputError: If the loss has changed the shape of a buffer.
        """
        self.shapes.check()
        if self.local_sgd:
            self.local_sgd.average()
            if self.ema:
                average_over_ranks(list(self.ema.state().values()))
        return self.buffers.synchronize() if self.buffers else []

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters that have a gradient."""
        return [grad for param in self.params if (grad := param.grad) is not None]


def build_learner(task: Task, config: RunConfig, ranks: Ranks, device: torch.device) -> Learner:
    """Create the learner of a task. Every rank must call it, with equal models.

    Args:
        task: The result of `build`; its model is changed in place.
        config: The resolved config.
        ranks: Rank of this process, and number of ranks.
        device: The device of this rank.

    Raises:
        InputError: If the model has weights, or the task an optimizer, that the trainer cannot use.
    """
    check_weights(task.model, config.parallel.strategy if ranks.world_size > 1 else "ddp")
    strategy = choose_strategy(device, config.parallel, config.precision)
    task.model = prepare(task.model, config, device)
    objective = Objective(task.model, task.loss)
    wrapped = strategy.wrap(objective, compile_options=config.compile_options())
    params = [param for param in task.model.parameters() if param.requires_grad]
    optimizer = _optimizer(task, params, config)
    factor = peak_factor(config.global_batch, config.schedule)
    peak_lrs = [float(group["lr"]) * factor for group in optimizer.param_groups]
    strategy.split(optimizer)
    init_momentum(optimizer)
    learner = Learner(
        strategy=strategy,
        objective=wrapped,
        model=task.model,
        count_param=objective.count_param,
        params=params,
        optimizer=optimizer,
        peak_lrs=peak_lrs,
        scaler=grad_scaler(config.precision, device),
        guard=Guard(strategy, optimizer, config.nonfinite.policy),
        device=device,
        precision=config.precision,
        clip_norm=config.clip_norm,
        sum_scale=_sum_scale(config, ranks),
        seed=config.seed,
        rank=ranks.rank,
        totals=LossTotals(device),
        parts=LossParts(device),
        shapes=BufferShapes(task.model),
    )
    _equip(learner, config, ranks.world_size)
    return learner


def _sum_scale(config: RunConfig, ranks: Ranks) -> float:
    """Return the factor that keeps gradients of sums in the range of fp16."""
    if config.precision != "fp16" and config.parallel.compression.name == "none":
        return 1.0
    return 1 / config.batch_split(ranks.world_size).per_rank


def footprint(learner: Learner) -> Footprint:
    """Return the memory that weights, gradients and optimizer state need before any sharding."""
    moments = MOMENTS
    if isinstance(learner.optimizer, torch.optim.SGD):
        moments = 1 if learner.optimizer.defaults["momentum"] else 0
    return Footprint(
        params=tuple(
            Size(tuple(param.shape), param.element_size(), param.requires_grad)
            for param in learner.model.parameters()
        ),
        moments=moments,
        averaged=learner.ema is not None,
        buffers=sum(buffer.nbytes for buffer in learner.model.buffers()),
        full_gradients=learner.strategy.config.full_gradients,
    )


def _optimizer(task: Task, params: list[nn.Parameter], config: RunConfig) -> torch.optim.Optimizer:
    if isinstance(task, HasOptimizer):
        optimizer = task.optimizer(params)
        check_closure(optimizer)
        return optimizer
    return build_optimizer(params, config.optimizer)


def _equip(learner: Learner, config: RunConfig, world_size: int) -> None:
    """Add buffer policy and moving average, and local SGD and compression if configured."""
    if world_size > 1:
        learner.buffers = LiveBuffers(learner.model, config.parallel.buffers) or None
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
        learner.compression = Compression(
            learner.objective,
            parallel.compression,
            config.seed,
            count_scale=learner.sum_scale / world_size,
        )
