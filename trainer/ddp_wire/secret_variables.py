"""Take secrets out of the environment of this process, and out of its memory.

Linux shows the first environment of a process in `/proc/PID/environ` for as long as the process
runs, even if it unsets variables later. A crash reporter or tracker may upload that file. Standard
library only, because the agent calls this before it imports anything else.
"""

import ctypes
import os
import sys
from collections.abc import Iterable

from ddp_wire.variables import Env

AGENT_SECRETS = (Env.AGENT_SECRET, Env.JOB_SECRET)
"""Variables of a worker container that no program of the user needs."""


def take(names: Iterable[str]) -> dict[str, str]:
    """Return the variables that are set, and remove them: overwrite their bytes, then unset them.

    Call it before another thread reads the environment.
    """
    found = {}
    for name in names:
        if (value := os.environ.get(name)) is not None:
            found[str(name)] = value
            _overwrite(name)
            del os.environ[name]
    return found


def _overwrite(name: str) -> None:
    """Overwrite the value of a variable with zeros where the kernel shows it."""
    if sys.platform == "win32":
        return
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(name.encode())
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
