"""Which attempt to run: a file that the kubelet keeps equal to the pod's annotation."""

from pathlib import Path

from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP


class Stop:
    """The order to end the ranks and exit."""


STOP = Stop()


class AttemptFile:
    """Reads the ordered attempt. Unreadable or half-written content counts as no news.

    The operator may tell the number sooner than the kubelet projects it: the higher one counts.
    """

    def __init__(self, pod_info_dir: Path) -> None:
        self._path = pod_info_dir / ATTEMPT_FILE
        self._last: int | Stop | None = None
        self._told: int | None = None

    def tell(self, attempt: int) -> None:
        """Take note of an attempt that the operator has ordered. Safe to call from any thread."""
        self._told = max(self._told or 0, attempt)

    def read(self) -> int | Stop | None:
        """The newest order: an attempt number from 1, `STOP`, or None before there is any.

        Orders never go back: an older number than one already read is ignored.
        """
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = ""
        if text == ATTEMPT_STOP:
            self._last = STOP
        if isinstance(self._last, Stop):
            return self._last
        known = [self._last, self._told, int(text) if text.isdigit() else None]
        self._last = max((number for number in known if number is not None), default=None)
        return self._last
