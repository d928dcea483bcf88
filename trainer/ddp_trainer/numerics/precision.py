"""The arithmetic of a run: fp32, tf32, bf16 or fp16 around weights that stay in fp32."""

from contextlib import AbstractContextManager, nullcontext

import torch

from ddp_trainer.config import Precision

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_matmul_precision(precision: Precision) -> None:
    """Allows TensorFloat-32 in products and convolutions for `tf32`, and forbids it otherwise.

    torch allows it in convolutions by default, which would make `fp32` mean two things.
    """
    allowed = precision == "tf32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.allow_tf32 = allowed


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward pass and loss."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaling, active for fp16 only: bf16 has the range of fp32."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
