"""Set the number formats of a run: fp32, tf32, bf16 or fp16 with fp32 weights, or fp64."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from ddp_trainer.config import Precision, RunConfig

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def with_precision(config: RunConfig, device: torch.device) -> RunConfig:
    """Return the config with the precision that `auto` selects for a device.

    TensorFloat-32 has the range of fp32, leaves weights and activations in fp32, and multiplies
    matrices several times as fast. A GPU without it computes in fp32. bf16 is faster, but it
    changes the types that a task's own code receives, so the user must select it.
    """
    if config.precision != "auto":
        return config
    chosen: Precision = "tf32" if device.type == "cuda" else "fp32"
    return config.model_copy(update={"precision": chosen})


def set_arithmetic(config: RunConfig) -> None:
    """Set torch's global switches for TensorFloat-32 and for the choice of algorithms.

    `tf32` allows TensorFloat-32 in matrix products and convolutions; other precisions forbid it. By
    default torch uses TensorFloat-32 in convolutions, so `fp32` would not mean fp32 everywhere.
    CUDA uses the fastest algorithms, or those with reproducible results if the config is
    `deterministic`.
    """
    allowed = config.precision == "tf32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    if config.deterministic:
        # cuBLAS reads it when it starts, after this call.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Only on a change: the call imports the compiler, which takes a second or two.
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cudnn.deterministic = config.deterministic
        torch.backends.cudnn.benchmark = not config.deterministic


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of forward pass and loss."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Create the gradient scaler. Only fp16 enables it, because bf16 has the range of fp32."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
