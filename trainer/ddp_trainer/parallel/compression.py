"""Compress gradients for communication, with torch's communication hooks for DDP.

One hook is registered for the whole run and decides at each update whether to compress. So
compression can begin at a later update, or when the measured share of communication is large
enough.

The loss count travels among the gradients, but is never rounded. fp16 and bf16 reduce it
separately, because fp16 ends at 65504 and both have few digits. PowerSGD compresses only matrices.
"""

from collections.abc import Callable
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import CompressionConfig
from ddp_trainer.errors import InputError
from ddp_trainer.names import NamedTensors
from ddp_trainer.parallel.ddp_times import mean_times
from ddp_trainer.parallel.error_feedback import ErrorFeedback
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.seeds import derive_seed

POWERSGD_EPSILON = 1e-8
"""Epsilon in PowerSGD's normalisation, which keeps columns without a gradient finite."""
_POWERSGD_BEGIN = 2
"""First update for torch's own PowerSGD: torch's minimum, because `Compression` decides when to
begin."""
_RESIDUE = "residue"
"""Prefix of the name of a residue in a checkpoint."""


class Compression:
    """Communication hook on a DDP module, with the decision when it compresses gradients."""

    def __init__(
        self,
        wrapped: DistributedDataParallel,
        config: CompressionConfig,
        seed: int,
        count_scale: float,
    ) -> None:
        """Register the hook on the module.

        Args:
            wrapped: The DDP module, before its first backward pass.
            config: Method of compression, and its first update.
            seed: Seed of PowerSGD's matrices, equal on all ranks.
            count_scale: Reduced count of an update divided by the count of all ranks.

        Raises:
            InputError: If the collectives of the device do not support the type.
        """
        device = next(wrapped.parameters()).device
        if config.name == "bf16" and device.type != "cuda":
            raise InputError("config: parallel.compression.name bf16 needs CUDA; use fp16 on CPU")
        self._config = config
        self._wrapped = wrapped
        self._device = device
        self._count_param = cast("Objective", wrapped.module).count_param
        self.switched_on = not config.adaptive
        """Whether compression may begin. Adaptive compression waits for a large share."""
        self._active = False
        self.has_feedback = config.name == "powersgd"
        """Whether what compression loses in one update is added to the next one."""
        self._power = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=config.rank,
            start_powerSGD_iter=_POWERSGD_BEGIN,
            orthogonalization_epsilon=POWERSGD_EPSILON,
            random_seed=derive_seed(seed, "powersgd") % 2**32,
        )
        self._power.iter = _POWERSGD_BEGIN
        self._feedback = ErrorFeedback(self._power, device, count_scale)
        wrapped.register_comm_hook(self, _hook)

    def begin(self, step: int, samples: int, scale: Callable[[Tensor], Tensor]) -> None:
        """Prepare for the reduction of an update's gradients.

        Args:
            step: Index of the update, from 0.
            samples: Samples of the update, over all ranks.
            scale: Factor of the differentiated sum but not of the count, from an fp16 gradient
                scaler.
        """
        self._active = self.switched_on and step >= self._config.start
        if self._active and self.has_feedback:
            self._feedback.begin(samples, scale)

    def finish(self, count: Tensor, nonfinite: Tensor) -> None:
        """Keep the error of the update's compression for the next update.

        Args:
            count: Mean of the ranks' loss counts, as reduced.
            nonfinite: Scalar, 1 if the update is skipped because its gradients were not finite.
        """
        if self._active and self.has_feedback:
            self._feedback.finish(count, nonfinite)
        self._active = False

    def consider(self, step: int, share: float) -> str | None:
        """Switch compression on for the rest of the run if the share is large enough.

        Args:
            step: Number of completed updates.
            share: Mean over ranks of `communication_share`.

        Returns:
            A message if this call switched compression on, else None.
        """
        if self.switched_on or step < self._config.start or not share >= self._config.share:
            return None
        self.switched_on = True
        return (
            f"compression: {self._config.name} from step {step} on, because {share:.0%} of the time"
            f" was spent waiting for communication"
        )

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Average the gradients of a bucket over the ranks, compressed or not."""
        if not self._active:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
        match self._config.name:
            case "fp16":
                return self._round(bucket, default_hooks.fp16_compress_hook)
            case "bf16":
                return self._round(bucket, default_hooks.bf16_compress_hook)
            case _:
                return powerSGD_hook.powerSGD_hook(self._power, bucket)

    def _round(self, bucket: GradBucket, hook: Callable[..., Future[Tensor]]) -> Future[Tensor]:
        """Average a bucket with a hook that rounds gradients, but average the count in fp32."""
        params = bucket.parameters()
        found = [i for i, param in enumerate(params) if param is self._count_param]
        if not found:
            return hook(None, bucket)
        if len(params) == 1:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
        count = bucket.gradients()[found[0]]
        # This reduction begins first, so that the callback below never waits long for it.
        exact = dist.all_reduce(count / dist.get_world_size(), async_op=True).get_future()

        def insert_count(rounded: Future[Tensor]) -> Tensor:
            buffer = rounded.value()
            count.copy_(exact.wait()[0])
            return buffer

        return hook(None, bucket).then(insert_count)

    def share(self) -> float:
        """Return the part of time this rank waits for communication; 0 once switched on."""
        return 0.0 if self.switched_on else communication_share(self._wrapped)

    def state(self, rank: int) -> dict[str, Tensor]:
        """Return the state for a checkpoint: this rank's residues, and what all ranks share.

        During an update it is the state before that update, except for the matrices `p`, which
        each update overwrites.
        """
        residues, directions = self._feedback.before
        found = {f"{_RESIDUE}/{rank}/{i}": error for i, error in residues.items()}
        known = directions.keys()
        found |= {f"p/{i}": p for i, p in self._power.p_memory_dict.items() if i in known}
        found |= {f"q/{index}": tensor for index, tensor in directions.items()}
        return found | ({"rate/": self._feedback.rate} if found else {})

    def load(
        self, saved: NamedTensors, rank: int, *, world_size: int, saved_world_size: int
    ) -> None:
        """Load saved state, which only PowerSGD has.

        At another number of ranks, each rank starts with the mean of the saved residues. An update
        uses only the mean of all residues, which stays the same. So no compression error is lost or
        added twice.

        Args:
            saved: The merged results of `state` of all ranks. Residues of older releases
                (`error/…`) are dropped, because they were gradients of sums.
            rank: Number of this rank.
            world_size: Number of ranks now.
            saved_world_size: Number of ranks that saved the state.
        """
        if not self.has_feedback:
            return
        memory = {"p": self._power.p_memory_dict, "q": self._power.q_memory_dict}
        # After a rollback, the residues here belong to updates that no longer count.
        self._power.error_dict.clear()
        for path, tensor in saved.items():
            kind, _, rest = path.partition("/")
            if kind == "rate":
                self._feedback.rate = tensor.to(self._device)
            elif kind in memory:
                memory[kind][int(rest)] = tensor.to(self._device)
            elif kind == _RESIDUE:
                owner, _, index = rest.partition("/")
                if world_size != saved_world_size:
                    self._feedback.add(int(index), tensor, 1 / saved_world_size)
                elif int(owner) == rank:
                    self._feedback.add(int(index), tensor, 1.0)


def owner_of(path: str) -> int | None:
    """Return the rank to which an entry of the state belongs, or None if all ranks have it."""
    kind, _, rest = path.partition("/")
    return int(rest.partition("/")[0]) if kind == _RESIDUE else None


def residues_in(saved: NamedTensors) -> bool:
    """Return whether saved state contains residues that `Compression.load` can use."""
    return any(map(is_residue, saved))


def is_residue(path: str) -> bool:
    """Return whether a tensor in saved state is the residue of a single rank."""
    return path.startswith(f"{_RESIDUE}/")


def _hook(state: Compression, bucket: GradBucket) -> Future[Tensor]:
    return state.reduce(bucket)


def communication_share(wrapped: nn.Module) -> float:
    """Return the share of an update's time in which DDP only waited for communication.

    Without measurements of DDP the share is 0.
    """
    times = mean_times(wrapped)
    if times is None:
        return 0.0
    return times.exposed / (times.forward + times.backward + times.exposed)
