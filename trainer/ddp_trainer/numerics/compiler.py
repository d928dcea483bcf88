"""Check that this machine has the programs and headers that torch.compile needs."""

import os
import shutil
import sysconfig
from pathlib import Path

import torch

from ddp_trainer.errors import InputError

_PROGRAMS = {
    "cpu": ("CXX", ("g++",), "C++ compiler"),
    "cuda": ("CC", ("gcc", "clang"), "C compiler"),
}
"""Compiler by type of device: the variable that names it, the names that torch or Triton tries
otherwise, and its kind."""
_REMEDY = (
    "use an image of the Dockerfile's target trainer-compiler, install it in your image, or remove"
    " compile"
)


def check_compiler(device: torch.device) -> None:
    """Check that this machine has a compiler and Python's headers for torch.compile.

    On the CPU torch compiles the C++ that it writes. On a GPU Triton compiles the C that starts its
    kernels. If a compiler or header is missing, the first update fails with a traceback.

    Args:
        device: The device of this rank.

    Raises:
        InputError: If the compiler or the headers are missing.
    """
    variable, names, kind = _PROGRAMS[device.type]
    given = os.environ.get(variable)
    if not any(shutil.which(name) for name in ([given] if given else names)):
        tried = f"{variable}={given}" if given else " or ".join(names)
        raise InputError(
            f"config: compile needs a {kind} for {device.type}, but {tried} is not installed;"
            f" {_REMEDY}"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise InputError(
            f"config: compile needs Python's headers, but {header} does not exist; {_REMEDY}"
        )
