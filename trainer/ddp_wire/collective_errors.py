"""Texts by which gloo, NCCL and torch's c10d mark their errors. Agent and trainer use them.

The libraries choose the rest of the text and may change it. A mark names the library. It shows that
a call that waits for other ranks has failed, no matter which code made the call: DDP calls from
autograd.
"""

import re

_GLOO = r"\S*\bgloo/\S+\.(?:cc|h):\d+\]"
"""File and line of gloo's code, for example `[/src/gloo/transport/tcp/pair.cc:5]`."""
_NCCL = r"\bNCCL error\b|\bnccl[A-Z]\w*Error\b|\bProcessGroup(?:NCCL|Gloo)\b"

MARK = re.compile(rf"{_GLOO}|{_NCCL}")
"""Mark of such a library in the first line of an error."""

RAISED = re.compile(
    rf"^(?:torch\.distributed\.Dist\w*Error: |RuntimeError: .*(?:{MARK.pattern}))", re.MULTILINE
)
"""Line of a traceback with such an error. Only c10d raises torch's types for them."""
