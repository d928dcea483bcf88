"""Choose when the operator collects garbage and returns memory to the system."""

import contextlib
import ctypes
import gc
import sys

from ddp_operator.cluster.kube.used_fields import forget_shared_strings


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
    _empty_caches()
    gc.collect()
    with contextlib.suppress(AttributeError):  # Only glibc has this function.
        ctypes.CDLL(None).malloc_trim(0)


def _empty_caches() -> None:
    """Empty the caches of Python and of yarl, the library that reads URLs.

    They are small, but their entries lie between the memory of many jobs, and memory is returned
    in whole pages. A few thousand entries kept 17 MB.
    """
    sys._clear_type_cache()  # noqa: SLF001 - documented, for a case like this
    for name in [name for name in sys.modules if name.partition(".")[0] == "yarl"]:
        for value in vars(sys.modules[name]).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()
