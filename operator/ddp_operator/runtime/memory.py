"""When the operator collects garbage and returns memory to the system."""

import contextlib
import ctypes
import gc

from ddp_operator.cluster.used_fields import forget_shared_strings


def collect_garbage_less_often() -> None:
    """Leave full garbage collections to `release_memory`.

    Each of them stops the event loop for about 0.1 s. By default one came with every hundred pods,
    and found next to nothing. What the imports have created stays for ever, so no collection looks
    at it again.
    """
    gc.freeze()
    gc.set_threshold(1_000, 20, 1_000)


def release_memory() -> None:
    """Collect all garbage, and return free memory to the system, as far as its C library can.

    Without this a process stays as large as it once was, for example while a thousand jobs ran.
    """
    forget_shared_strings()
    gc.collect()
    with contextlib.suppress(AttributeError):  # Only glibc has this function.
        ctypes.CDLL(None).malloc_trim(0)
