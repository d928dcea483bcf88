"""Failures of the volume: repeated tries, and the errors that they end in.

A file server that restarts, a stale handle or a full volume often recovers within seconds. Such an
error is no evidence about the checkpoint itself.
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
"""Seconds between two tries. A file server that restarts often answers again within their sum."""

_OF_THE_INPUT = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
})  # fmt: skip
"""Errors of a wrong path or of missing rights. Only the user can correct them."""
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def retried(act: Callable[[], T], sleep: Sleep) -> T:
    """Return the result of `act`, which is called again after an error of the volume.

    Args:
        act: Function that accesses the volume. It must be possible to repeat it.
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
        of_the_input: Class of the result if the user must correct the error.
    """
    kind = of_the_input if error.errno in _OF_THE_INPUT else VolumeError
    return kind(sentence)


def os_error(error: Exception) -> OSError:
    """Return an error of safetensors as an `OSError`, with the number of the system if it has one.

    safetensors reports errors of the volume with its own class, and the number in the text.
    """
    found = _SYSTEM_ERROR.search(str(error))
    return OSError(int(found[1]), str(error)) if found else OSError(str(error))
