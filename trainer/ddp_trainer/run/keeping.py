"""Keep the state that a pass changes, so that an interrupted update leaves no trace in a record.

A forward pass changes buffers, such as BatchNorm's statistics, and may change the task's own state.
If the update ends by an error, its pass must not count, because the next attempt repeats it. So
each update begins with a copy of these parts. They are small beside weights and optimizer, which
only the end of an update changes. Models and tasks without such state cost nothing.

With fsdp2 a pass also replaces the split weights of the model by whole ones for a moment, so the
keeper remembers the split ones.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ddp_trainer.checkpoint.snapshot import Snapshot, Tensors, own_tensors
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.batch_norm import is_statistic
from ddp_trainer.numerics.buffers import Slot, saved_slots
from ddp_trainer.parallel.dtensor import is_split
from ddp_trainer.run.state import own_state, task_state
from ddp_trainer.task import Task, stateful


class Keeper:
    """Copies of the buffers and of the task's state at the beginning of the newest update."""

    def __init__(self, learner: Learner, task: Task) -> None:
        """Prepare to copy. No pass may be in progress.

        Args:
            learner: Learner of the task.
            task: Task, whose own state is kept too.
        """
        self._learner, self._task = learner, task
        self._slots = saved_slots(learner.model)
        tensors = own_tensors(learner.model)
        self._fixed = tensors if any(map(is_split, tensors.values())) else None
        self._has_task_state = stateful(task) is not None
        self._step = -1
        self._used: list[Slot] = []
        self._copies: list[Tensor] = []
        self._task_state: tuple[Tensors, Any] = ({}, None)

    @torch.no_grad()
    def begin_update(self, step: int) -> None:
        """Copy what the update may change before its end.

        Args:
            step: Number of completed updates.
        """
        if self._slots:
            self._copy_buffers()
        if self._has_task_state:
            tensors, rest = task_state(self._task)
            self._task_state = {n: tensor.clone() for n, tensor in tensors.items()}, rest
        self._step = step

    @torch.no_grad()
    def snapshot(self, step: int) -> Snapshot:
        """Return the state after the newest complete update, without copying weights.

        The buffers of the snapshot also contain this rank's running statistics of BatchNorm.

        Args:
            step: Number of completed updates.

        Raises:
            InputError: If the task's state contains a value that is neither a tensor nor JSON.
        """
        learner = self._learner
        own = own_state(learner, self._task, self._tensors())
        kept: Tensors = {}
        if self._step == step:  # Otherwise no update has begun since.
            kept = {slot.name: copy for slot, copy in zip(self._used, self._copies, strict=True)}
            if self._has_task_state:
                own.task, own.task_rest = self._task_state
        own.model = {name: kept.get(name, tensor) for name, tensor in own.model.items()}
        mine = dict(own.buffers.items()) | self._statistics()
        prefix = f"{learner.rank}/"
        own.buffers = {n: kept.get(n.removeprefix(prefix), tensor) for n, tensor in mine.items()}
        return own

    def _tensors(self) -> Tensors | None:
        """Return the model's tensors, split ones as they were between two passes; None if any."""
        if self._fixed is None:
            return None
        return self._fixed | {slot.name: slot.tensor for slot in self._slots}

    def _statistics(self) -> Tensors:
        """Return the running statistics of BatchNorm, which differ between the ranks."""
        rank = self._learner.rank
        return {f"{rank}/{slot.name}": slot.tensor for slot in self._slots if is_statistic(slot)}

    def _copy_buffers(self) -> None:
        used = [slot for slot in self._slots if self._may_change(slot)]
        now = [slot.tensor for slot in used]
        if [copy.shape for copy in self._copies] != [tensor.shape for tensor in now]:
            self._copies = [torch.empty_like(tensor) for tensor in now]
        self._used = used
        if now:
            torch._foreach_copy_(self._copies, now)

    def _may_change(self, slot: Slot) -> bool:
        """Return whether a pass may change a buffer. Without a policy all count."""
        buffers = self._learner.buffers
        if isinstance(slot.module, _BatchNorm) or buffers is None or buffers.names is None:
            return True
        return slot.name in buffers.names
