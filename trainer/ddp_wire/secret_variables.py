"""Take secrets out of the environment of this process, and out of its memory.

Linux shows the first environment of a process in `/proc/PID/environ` for as long as the process
runs, even if it unsets variables later. A crash reporter or tracker may upload that file. This
module imports only the standard library, because the agent calls it before it imports anything
else.
"""

import ctypes
import os
import sys
from collections.abc import Iterable

from ddp_wire.variables import Env

AGENT_SECRETS = (Env.AGENT_SECRET, Env.JOB_SECRET)
"""Secret variables of a worker container, which the user's program does not need."""


def take(names: Iterable[str]) -> dict[str, str]:
    """Return the named variables that are set. Overwrite their bytes and unset them.

    Call this before another thread reads the environment.
    """
    found = {}
    for name in names:
        if (value := os.environ.get(name)) is not None:
            found[str(name)] = value
            _overwrite(name)
            del os.environ[name]
    return found


def _overwrite(name: str) -> None:
    """Overwrite the value of a variable with zeros in the memory that /proc/PID/environ shows."""
    if sys.platform == "win32":
        return
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(name.encode())
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
