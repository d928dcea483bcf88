"""Decide when the operator collects garbage and returns memory to the system."""

import contextlib
import ctypes
import gc
import sys

from ddp_operator.cluster.kube.used_fields import forget_shared_strings


def collect_garbage_less_often() -> None:
    """Disable automatic full garbage collections; `release_memory` runs them.

    Each full collection blocks the event loop for about 0.1 s. By default one ran with every
    hundred pods and freed almost nothing. Objects from imports are never freed, so collections skip
    them.
    """
    gc.freeze()
    gc.set_threshold(1_000, 20, 1_000)


def release_memory() -> None:
    """Collect all garbage, and return free memory to the system if its C library can do so.

    Otherwise the process keeps its peak size, for example that of a time with a thousand jobs.
    """
    forget_shared_strings()
    _empty_caches()
    gc.collect()
    with contextlib.suppress(AttributeError):  # Only glibc has this function.
        ctypes.CDLL(None).malloc_trim(0)


def _empty_caches() -> None:
    """Empty the caches of Python and of yarl, the library that reads URLs.

    The caches are small, but their entries lie between the freed memory of many jobs, and the
    system takes back only whole pages. A few thousand entries kept 17 MB.
    """
    sys._clear_type_cache()  # noqa: SLF001 - documented, for a case like this
    for name in [name for name in sys.modules if name.partition(".")[0] == "yarl"]:
        for value in vars(sys.modules[name]).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()
