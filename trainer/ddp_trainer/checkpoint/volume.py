"""Retry after errors of the volume, and convert the last error to a reported error.

A file server that restarts, a stale handle or a full volume often recovers within seconds. Such an
error does not mean that the checkpoint is damaged.
"""

import errno
import re
from collections.abc import Callable
from typing import TypeVar

from ddp_trainer.errors import InputError, ReportedError, VolumeError

T = TypeVar("T")
Sleep = Callable[[float], None]
"""Function that waits for a number of seconds, as `time.sleep` does."""

RETRY_WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between two tries. Within their sum, a file server that restarts usually answers
again."""

_OF_THE_INPUT = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
})  # fmt: skip
"""Classes of errors for a wrong path or missing permissions, which only the user can correct."""
_SYSTEM_ERROR = re.compile(r"\((?:os error )?(\d+)\)\Z|\(os error (\d+)\)")
"""Error number in a text: `… (os error 5)` of safetensors, and `… (5)` at the end of torch's."""


def retried(act: Callable[[], T], sleep: Sleep) -> T:
    """Return the result of `act`. Call it again after an error of the volume.

    Args:
        act: Function that accesses the volume, and that may be called several times.
        sleep: Function that waits between two calls.

    Raises:
        OSError: If the user must correct the error, or the last try failed.
    """
    for wait in RETRY_WAITS:
        try:
            return act()
        except OSError as error:
            if error.errno in _OF_THE_INPUT:
                raise
            sleep(wait)
    return act()


def volume_error(
    sentence: str, error: OSError, of_the_input: type[ReportedError] = InputError
) -> ReportedError:
    """Return the reported error for an error of the volume.

    Args:
        sentence: Complete sentence for the user.
        error: The error.
        of_the_input: Error class to return if the user must correct the error.
    """
    kind = of_the_input if error.errno in _OF_THE_INPUT else VolumeError
    return kind(sentence)


def os_error(error: Exception) -> OSError:
    """Return an error of safetensors or torch as an `OSError`, with its system error number if any.

    Both report errors of the volume as a class of their own, with the error number in the text.
    """
    found = _SYSTEM_ERROR.search(str(error))
    return OSError(int(found[1] or found[2]), str(error)) if found else OSError(str(error))
