"""Run several training loops in turn, a few steps each, with one thread per loop.

A machine's speed changes from second to second. Loops that run one after another therefore see
different speeds; loops that take turns of a few steps see the same one.
"""

import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Loop = Callable[[str, "Turn"], None]


@dataclass
class Turn:
    """Handle with which one loop ends its turn and waits for its next turn."""

    resumed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: bool = False
    error: BaseException | None = None

    def pause(self) -> None:
        """Let the other loops run, then restore this loop's garbage collector setting."""
        collects = gc.isenabled()
        self.paused.release()
        self.resumed.acquire()
        (gc.enable if collects else gc.disable)()

    def resume(self) -> None:
        """Let the loop run until it pauses or ends.

        Raises:
            BaseException: The error of the loop.
        """
        self.resumed.release()
        self.paused.acquire()
        if self.error is not None:
            raise self.error


def take_turns(names: Sequence[str], loop: Loop, seed: str) -> None:
    """Run a loop per name until all have ended.

    Args:
        names: Names of the loops.
        loop: Runs one loop and calls `pause` of its second argument between two steps.
        seed: Seed of the order, which changes with each lap and is the same on all ranks.

    Raises:
        BaseException: The error of a loop.
    """
    turns = {name: Turn() for name in names}
    threads = [
        threading.Thread(target=_run, args=(loop, name, turn), name=name, daemon=True)
        for name, turn in turns.items()
    ]
    for thread in threads:
        thread.start()
    rng = random.Random(seed)  # noqa: S311 - an order
    while active := [name for name, turn in turns.items() if not turn.ended]:
        rng.shuffle(active)
        for name in active:
            turns[name].resume()
    gc.enable()
    for thread in threads:
        thread.join()


def _run(loop: Loop, name: str, turn: Turn) -> None:
    turn.resumed.acquire()
    try:
        loop(name, turn)
    except BaseException as error:  # noqa: BLE001 - raised again in `resume`
        turn.error = error
    turn.ended = True
    turn.paused.release()
