"""Loops that make their steps in turn, each in a thread of its own.

A machine's speed changes from second to second. Loops that are measured one after the other meet
different machines; loops that take turns of a few steps meet the same one.
"""

import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Loop = Callable[[str, "Turn"], None]


@dataclass
class Turn:
    """One loop's way to give up its turn, and to wait for the next."""

    mine: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    over: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: bool = False
    error: BaseException | None = None

    def pause(self) -> None:
        """Let the others go on. What a loop does to the garbage collector is its own affair."""
        collects = gc.isenabled()
        self.over.release()
        self.mine.acquire()
        (gc.enable if collects else gc.disable)()

    def go(self) -> None:
        """Let the loop go on until it pauses or ends.

        Raises:
            BaseException: What the loop raised.
        """
        self.mine.release()
        self.over.acquire()
        if self.error is not None:
            raise self.error


def take_turns(names: Sequence[str], loop: Loop, seed: str) -> None:
    """Run a loop per name until all have ended.

    Args:
        names: Of the loops.
        loop: Runs one, and calls `pause` of what it is given between two steps.
        seed: Of the order, which is another one in each lap and the same on all ranks.

    Raises:
        BaseException: What a loop raised.
    """
    turns = {name: Turn() for name in names}
    threads = [
        threading.Thread(target=_run, args=(loop, name, turn), name=name, daemon=True)
        for name, turn in turns.items()
    ]
    for thread in threads:
        thread.start()
    chance = random.Random(seed)  # noqa: S311 - an order
    while going := [name for name, turn in turns.items() if not turn.ended]:
        chance.shuffle(going)
        for name in going:
            turns[name].go()
    gc.enable()
    for thread in threads:
        thread.join()


def _run(loop: Loop, name: str, turn: Turn) -> None:
    turn.mine.acquire()
    try:
        loop(name, turn)
    except BaseException as error:  # noqa: BLE001 - handed to the one who waits
        turn.error = error
    turn.ended = True
    turn.over.release()
