"""Compare the state that must be equal on all ranks, to find silent corruption.

DDP gives all ranks the same gradients, so their weights stay equal bit for bit. A rank whose
weights differ has a fault in its memory or its processor, or its task treats the ranks differently.
Each rank hashes its own state (`numerics.bit_hash`), and the ranks exchange the hashes: 8 bytes per
rank. Only after a difference they compare tensor by tensor, to name the rank and the tensor.

The ranks compare every `replicas.every_steps` updates, and before each checkpoint and evaluation.
So every checkpoint was compared when it was saved, and the next attempt can resume from the newest
one. Which state is equal depends on the strategy:

- ddp: weights, the optimizer's moments, and the moving average.
- zero1: the same without the moments, of which each rank has other ones. A rank overwrites the
  weights that it owns on all ranks after each update, so little is found.
- Local SGD: weights and moments, right after an average of the ranks.
- fsdp2: nothing, because each rank holds other parts.

A wrong gradient is not found, because the reduction spreads it to all ranks alike.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import ReplicasDifferError
from ddp_trainer.learner import Learner
from ddp_trainer.names import plain_name
from ddp_trainer.numerics.bit_hash import bit_hash, with_one_nan
from ddp_trainer.numerics.buffers import slots_in
from ddp_trainer.parallel.layout import is_moment
from ddp_trainer.ranks.collectives import rows_of_ranks
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.run import Run
from ddp_wire.activity import Activity
from ddp_wire.contract import ExitCode
from ddp_wire.replica_errors import NO_MAJORITY, PREFIX

LISTED = 8
"""Maximum number of ranks that a message lists."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Result of a comparison that found a difference."""

    odd: list[int]
    """Ranks that differ from the majority. All ranks without a majority."""
    has_majority: bool
    tensors: list[str]
    """Names of the tensors that differ."""


def why_off(config: RunConfig, ranks: Ranks, arithmetics: Sequence[str]) -> str | None:
    """Return a sentence that says why the ranks cannot compare their state, or None if they can.

    Args:
        config: The resolved config.
        ranks: Rank of this process, and number of ranks.
        arithmetics: Arithmetic of each rank (`RankInfo.arithmetic`).
    """
    if ranks.world_size == 1 or not config.replicas.every_steps:
        return None
    off = "the ranks do not compare their weights (replicas.every_steps)"
    if config.parallel.strategy == "fsdp2":
        return f"{off}, because fsdp2 splits them: no two ranks hold the same"
    if len(set(arithmetics)) > 1:
        first, *others = dict.fromkeys(arithmetics)
        return (
            f"{off}, because they may round differently: some compute with {first}, some with"
            f" {others[0]}"
        )
    return None


def check_replicas(run: Run) -> None:
    """Compare the ranks, unless this was done at this step. Every rank must call it.

    Raises:
        ReplicasDifferError: On every rank, if the state differs.
    """
    learner, step = run.learner, run.position.step
    apart = learner.local_sgd is not None and learner.local_sgd.apart
    if not run.replicas.enabled or apart or run.replicas.equal_step == step:
        return
    learner.trace.enter(Activity.REPLICAS)
    named = compared(learner)
    with learner.gate:
        hashes = rows_of_ranks(bit_hash(named.values(), learner.device).view(1)).tolist()
    if any(row != hashes[0] for row in hashes):
        found = _examine(named, learner.device)
        if found is not None:
            raise _error(run, found, len(named))
    run.replicas.equal_step = step


def compared(learner: Learner) -> dict[str, Tensor]:
    """Return the tensors that are equal on all ranks after each update, by name."""
    # The loss may change these parameters as buffers, on each rank in its own way.
    buffers = {id(getattr(slot.module, slot.key)) for slot in slots_in(learner.model)}
    params = {plain_name(name): param for name, param in learner.model.named_parameters()}
    params = {name: param for name, param in params.items() if id(param) not in buffers}
    found: dict[str, Tensor] = dict(params)
    if not learner.strategy.splits_optimizer:
        for name, param in params.items():
            state = learner.optimizer.state.get(param, {})
            for key, value in sorted(state.items()):
                if is_moment(value, key, param) and value.device == param.device:
                    found[f"{key} of {name}"] = value
    if learner.ema and not learner.local_sgd:
        found |= {f"average of {name}": value for name, value in learner.ema.state().items()}
    return {name: tensor for name, tensor in found.items() if tensor.layout == torch.strided}


def _examine(named: dict[str, Tensor], device: torch.device) -> Difference | None:
    """Compare tensor by tensor. Return None if only the bits of NaN differ."""
    each = [bit_hash([with_one_nan(tensor)], device) for tensor in named.values()]
    return judge(rows_of_ranks(torch.stack(each)).tolist(), list(named))


def judge(rows: Sequence[Sequence[Hashable]], names: Sequence[str]) -> Difference | None:
    """Decide which ranks differ from the majority, and in which tensors.

    Args:
        rows: Hashes of each rank, one per tensor.
        names: Names of the tensors.

    Returns:
        The difference, or None if all ranks are equal.
    """
    kinds = [tuple(row) for row in rows]
    usual, count = Counter(kinds).most_common(1)[0]
    if count == len(kinds):
        return None
    tensors = [name for name, column in zip(names, zip(*kinds, strict=True), strict=True)
               if len(set(column)) > 1]  # fmt: skip
    has_majority = 2 * count > len(kinds)
    odd = [rank for rank, kind in enumerate(kinds) if not has_majority or kind != usual]
    return Difference(odd, has_majority, tensors)


def sentence(found: Difference, *, world_size: int, total: int, step: int, equal: int) -> str:
    """Return the message about a difference.

    Args:
        found: The difference.
        world_size: Number of ranks.
        total: Number of compared tensors.
        step: Number of completed updates.
        equal: Number of completed updates at the last comparison without a difference.
    """
    where = (
        f'in {len(found.tensors)} of {total} tensors, first "{found.tensors[0]}", after update'
        f" {step}; at update {equal} all ranks were equal"
    )
    if not found.has_majority:
        return f"{PREFIX}the weights of {_listed(found.odd)} differ {where}; {NO_MAJORITY}"
    return (
        f"{PREFIX}the weights of {_listed(found.odd)} differ from those of the other"
        f" {world_size - len(found.odd)} ranks {where}; memory or processor there may corrupt data"
    )


def _listed(ranks: Sequence[int]) -> str:
    """Return a list of ranks as words."""
    shown = ", ".join(map(str, ranks[:LISTED]))
    more = f" and {len(ranks) - LISTED} more" if len(ranks) > LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _error(run: Run, found: Difference, total: int) -> ReplicasDifferError:
    """Report the difference as a warning, and return this rank's error."""
    rank, world_size = run.ranks.rank, run.ranks.world_size
    text = sentence(
        found,
        world_size=world_size,
        total=total,
        step=run.position.step,
        equal=run.replicas.equal_step,
    )
    run.report.warn(text)
    blamed = found.has_majority and rank in found.odd
    if run.config.replicas.policy == "stop":
        code = ExitCode.CORRUPTION_STOP
    else:
        code = ExitCode.CORRUPTED if blamed else ExitCode.REPLICAS_DIFFER
    silent = found.has_majority and not blamed
    return ReplicasDifferError(text, code, blamed=blamed, silent=silent)
