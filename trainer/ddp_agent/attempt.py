"""Which attempt to run: a file that the kubelet keeps equal to the pod's annotation."""

from pathlib import Path

from ddp_agent.contract import ATTEMPT_FILE, ATTEMPT_STOP


class Stop:
    """The order to end the ranks and exit."""


STOP = Stop()


class AttemptFile:
    """Reads the ordered attempt. Unreadable or half-written content counts as no news."""

    def __init__(self, pod_info_dir: Path) -> None:
        self._path = pod_info_dir / ATTEMPT_FILE
        self._last: int | Stop | None = None

    def read(self) -> int | Stop | None:
        """The newest order: an attempt number from 1, `STOP`, or None before there is any.

        Orders never go back: an older number than one already read is ignored.
        """
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return self._last
        if text == ATTEMPT_STOP:
            self._last = STOP
        elif text.isdigit() and not isinstance(self._last, Stop):
            self._last = max(int(text), self._last or 0)
        return self._last
