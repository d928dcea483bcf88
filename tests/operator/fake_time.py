"""An event loop whose time jumps: what waits for a minute is done at once, in the right order."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits and nothing will ever happen")
        self.now += max(0.0, timeout)
        return super().select(0)


class _JumpLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = _JumpSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run_in_fake_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a loop whose time jumps from one timer to the next."""
    with asyncio.Runner(loop_factory=_JumpLoop) as runner:
        return runner.run(work)
