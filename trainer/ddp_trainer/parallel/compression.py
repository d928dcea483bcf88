"""Smaller gradients on the wire, by torch's communication hooks for DDP.

One hook is registered for the whole run and decides per update, so compression can begin late, or
when the measured share of waiting for communication says that it pays.
"""

from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import CompressionConfig
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive

POWERSGD_EPSILON = 1e-8
"""Keeps columns without a gradient from becoming infinite when they are normalised."""
_POWERSGD_BEGIN = 2
"""The least that torch's state takes; the hook here begins when it is told to."""


class Compression:
    """Registers itself with a DDP module, and says when it compresses."""

    def __init__(
        self, wrapped: DistributedDataParallel, config: CompressionConfig, seed: int
    ) -> None:
        """Registers the hook.

        Args:
            wrapped: Before its first backward pass.
            config: What to use, and when.
            seed: Equal on all ranks.

        Raises:
            InputError: If the device's collectives do not know the type.
        """
        device = next(wrapped.parameters()).device
        if config.name == "bf16" and device.type != "cuda":
            raise InputError("config: parallel.compression.name bf16 needs CUDA; the CPU has fp16")
        self._config = config
        self._wrapped = wrapped
        self._device = device
        self.switched_on = not config.adaptive
        """Whether the share of communication was large enough, if that matters."""
        self._active = False
        self._power = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=config.rank,
            start_powerSGD_iter=_POWERSGD_BEGIN,
            orthogonalization_epsilon=POWERSGD_EPSILON,
            random_seed=derive(seed, "powersgd") % 2**32,
        )
        self._power.iter = _POWERSGD_BEGIN
        wrapped.register_comm_hook(self, _hook)

    def begin(self, step: int) -> None:
        """Tells the index of the update whose gradients come next."""
        self._active = self.switched_on and step >= self._config.start

    def consider(self, step: int, share: float) -> str | None:
        """Switches on for the rest of the run, if the share is large enough.

        Args:
            step: Updates done.
            share: Mean over ranks of `communication_share`.

        Returns:
            A sentence, if it was switched on now.
        """
        if self.switched_on or step < self._config.start or not share >= self._config.share:
            return None
        self.switched_on = True
        return (
            f"compression: {self._config.name} from step {step} on, because {share:.0%} of the time"
            f" was spent waiting for communication"
        )

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Averages a bucket over ranks."""
        if not self._active:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
        match self._config.name:
            case "fp16":
                return default_hooks.fp16_compress_hook(None, bucket)  # type: ignore[arg-type]
            case "bf16":
                return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]
            case _:
                return powerSGD_hook.powerSGD_hook(self._power, bucket)

    def share(self) -> float:
        """Part of this rank's time that it waited for communication; 0 when not wanted."""
        return 0.0 if self.switched_on else communication_share(self._wrapped)

    def state(self, rank: int) -> dict[str, Tensor]:
        """What a resumed run needs: the residue of this rank, and the matrices that all share."""
        found = {f"error/{rank}/{i}": error for i, error in self._power.error_dict.items()}
        found |= {f"p/{index}": tensor for index, tensor in self._power.p_memory_dict.items()}
        return found | {f"q/{index}": t for index, t in self._power.q_memory_dict.items()}

    def load(self, saved: dict[str, Tensor], rank: int, *, same_world: bool) -> None:
        """Takes saved state up.

        Args:
            saved: As `state` gave it on all ranks.
            rank: This rank.
            same_world: Whether there were as many ranks; residues are dropped otherwise.
        """
        memory = {"p": self._power.p_memory_dict, "q": self._power.q_memory_dict}
        for path, tensor in saved.items():
            kind, _, rest = path.partition("/")
            if kind in memory:
                memory[kind][int(rest)] = tensor.to(self._device)
            elif same_world and rest.startswith(f"{rank}/"):
                index = int(rest.partition("/")[2])
                self._power.error_dict[index] = tensor.to(self._device)


def _hook(state: Compression, bucket: GradBucket) -> Future[Tensor]:
    return state.reduce(bucket)


def communication_share(wrapped: nn.Module) -> float:
    """Part of an update's time in which DDP only waited for gradients of other ranks.

    From DDP's own timers, which look at the first ten updates and then at one in a hundred. They
    are a prototype of torch: where they are missing, the share is 0.
    """
    read = getattr(wrapped, "_get_ddp_logging_data", None)
    found: dict[str, Any] = read() if read else {}
    try:
        forward, backward, communication, overlap = (
            int(found[f"avg_{name}_time"])
            for name in (
                "forward_compute",
                "backward_compute",
                "backward_comm",
                "backward_compute_comm_overlap",
            )
        )
    except (KeyError, ValueError):
        return 0.0
    waiting = max(0, communication - overlap)
    return waiting / max(1, forward + backward + waiting)
