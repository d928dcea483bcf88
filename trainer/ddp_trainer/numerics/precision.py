"""The arithmetic of a run: fp32, tf32, bf16 or fp16 around weights that stay in fp32; or fp64."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from ddp_trainer.config import Precision, RunConfig

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_arithmetic(config: RunConfig) -> None:
    """Sets what is global in torch: TensorFloat-32, and the choice of algorithms.

    TensorFloat-32 is allowed in products and convolutions for `tf32` and forbidden otherwise: torch
    allows it in convolutions by default, which would make `fp32` mean two things. CUDA's algorithms
    are those that are fastest here, or else those that give the same bits each time.
    """
    allowed = config.precision == "tf32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    if config.deterministic:
        # Read when cuBLAS starts, which is later than this.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Not without need: it imports the compiler, which takes a second or two.
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cudnn.deterministic = config.deterministic
        torch.backends.cudnn.benchmark = not config.deterministic


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward pass and loss."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaling, active for fp16 only: bf16 has the range of fp32."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
