"""Patterns that recognise errors of gloo, NCCL and torch's c10d, for agent and trainer.

A pattern matches only the part of the text that names the library, because the rest differs between
versions. Such an error shows that a collective has failed, no matter which code called it: DDP
calls collectives from autograd.
"""

import re

_GLOO = r"\S*\bgloo/\S+\.(?:cc|h):\d+\]"
"""File and line of gloo's code, for example `[/src/gloo/transport/tcp/pair.cc:5]`."""
_NCCL = r"\bNCCL error\b|\bnccl[A-Z]\w*Error\b|\bProcessGroup(?:NCCL|Gloo)\b"

MARK = re.compile(rf"{_GLOO}|{_NCCL}")
"""Name of one of these libraries, as it appears in the first line of an error."""

RAISED = re.compile(
    rf"^(?:torch\.distributed\.Dist\w*Error: |RuntimeError: .*(?:{MARK.pattern}))", re.MULTILINE
)
"""Line of a traceback that reports such an error. Only c10d raises
`torch.distributed.Dist…Error`."""
