"""Figures of the checkpoint benchmark: throughput lost, memory, load times, and the goals."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.saves import DCP, EACH, NOTHING, RECORD, SURVIVORS, TORCH, VOLUME

INTERVAL = 60.0
"""Seconds between two saves of the row that has a goal."""
GOAL_VOLUME, GOAL_SURVIVORS, GOAL_MEMORY = 0.005, 0.001, 1.1
ONCE = (VOLUME, TORCH, DCP)
"""What saves once in a block."""


@dataclass(slots=True)
class Figures:
    """Results of all rounds."""

    updates: int
    """Updates of a block."""
    state_bytes: int
    blocks: list[dict[str, float]] = field(default_factory=list)
    """Seconds of a block by name, for each round."""
    memory: dict[str, int] = field(default_factory=dict)
    """Peak extra memory of the node by name, in bytes."""
    loads: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of a load by name."""
    begin_seconds: float = 0.0
    """Seconds that survivors cost before one update, measured alone."""
    record_seconds: float = 0.0

    @property
    def update_seconds(self) -> float:
        """Median seconds of an update without saving."""
        return statistics.median(block[NOTHING] for block in self.blocks) / self.updates

    def beyond(self, name: str) -> list[float]:
        """Return the seconds of a block beyond the block without saving of the same round."""
        return [block[name] - block[NOTHING] for block in self.blocks]

    def lost(self, name: str) -> tuple[float, float, float]:
        """Return the median, lowest and highest share of the throughput that is lost.

        What saves once in a block is converted to one save each `INTERVAL` seconds.
        """
        if name in ONCE:
            shares = [seconds / INTERVAL for seconds in self.beyond(name)]
        else:
            shares = [1 - block[NOTHING] / block[name] for block in self.blocks]
        return statistics.median(shares), min(shares), max(shares)

    def survivors_share(self) -> float:
        """Return the measured cost of survivors before an update, as a share of the update."""
        return self.begin_seconds / self.update_seconds


def table(figures: Figures) -> str:
    """Return the results as Markdown. Memory is the extra one, as a multiple of the state."""
    lines = [
        "| what saves | s per save | throughput lost | lowest to highest | memory | load, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in (SURVIVORS, VOLUME, TORCH, DCP, EACH):
        middle, low, high = figures.lost(name)
        saves = 1 if name in ONCE else figures.updates if name == EACH else 0
        seconds = f"{statistics.median(figures.beyond(name)) / saves:.3f}" if saves else "-"
        loads = figures.loads.get(name)
        each = f", each {INTERVAL:.0f} s" if name in ONCE else ""
        lines.append(
            f"| {name}{each} | {seconds} | {middle:.2%} | {low:.2%} to {high:.2%}"
            f" | {_multiple(figures, name)} | {_seconds(loads)} |"
        )
    lines.append(
        f"| {RECORD} | {figures.record_seconds:.3f} | - | - | {_multiple(figures, RECORD)} | - |"
    )
    return "\n".join(lines)


def _multiple(figures: Figures, name: str) -> str:
    found = figures.memory.get(name)
    return "-" if found is None else f"{found / figures.state_bytes:.2f}"


def _seconds(seconds: Sequence[float] | None) -> str:
    return f"{statistics.median(seconds):.3f}" if seconds else "-"


def missed(figures: Figures) -> list[str]:
    """Return one sentence for each goal that is missed."""
    found = []
    if (share := figures.survivors_share()) > GOAL_SURVIVORS:
        found.append(f"survivors cost {share:.3%} of an update, the goal is {GOAL_SURVIVORS:.1%}")
    if (share := figures.lost(VOLUME)[0]) > GOAL_VOLUME:
        found.append(
            f"a save each {INTERVAL:.0f} s loses {share:.2%} of the throughput, the goal is"
            f" {GOAL_VOLUME:.1%}"
        )
    for name in (VOLUME, EACH, RECORD):
        multiple = figures.memory.get(name, 0) / figures.state_bytes
        if multiple > GOAL_MEMORY:
            found.append(f"{name} needs {multiple:.2f} x the state, the goal is {GOAL_MEMORY}")
    volume, other = (statistics.median(figures.loads[name]) for name in (VOLUME, DCP))
    if volume > other:
        found.append(f"a load takes {volume:.3f} s, and {other:.3f} s with DCP")
    return found
