"""What is measured at one world size, and what several of them say together. No torch, no clock."""

from collections.abc import Sequence

from pydantic import BaseModel


class Communication(BaseModel):
    """Parts of an average update in milliseconds, as DDP notes them on rank 0."""

    forward: float
    backward: float
    reduction: float
    overlap: float
    """Part of the reduction during which the backward pass still computed."""

    @property
    def exposed(self) -> float:
        """Part of the reduction that nothing hid."""
        return max(0.0, self.reduction - self.overlap)


class Point(BaseModel):
    """One world size at one batch; times of rank 0."""

    world_size: int
    global_batch: int
    step_ms: float
    """Milliseconds per update, the wait for data included."""
    wait_fraction: float
    """Part of it in which the rank waited for data."""
    minimal_ms: float | None = None
    """The same of the minimal loop; nothing if the strategy is not DDP."""
    communication: Communication | None = None
    """Nothing without DDP."""

    @property
    def rate(self) -> float:
        """Samples per second, over all ranks."""
        return 1000 * self.global_batch / self.step_ms


def weak_efficiency(point: Point, alone: Point) -> float:
    """rate_N / (N rate_1) at the same batch per rank.

    Args:
        point: At world size N.
        alone: At world size 1.
    """
    return point.rate / (point.world_size * alone.rate)


def strong_efficiency(point: Point, alone: Point) -> float:
    """T_1 / (N T_N) at the same global batch.

    Args:
        point: At world size N.
        alone: At world size 1.
    """
    return alone.step_ms / (point.world_size * point.step_ms)


def table(title: str, points: Sequence[Point], efficiencies: Sequence[float]) -> str:
    """Points in rows, as Markdown.

    Args:
        title: Of the first column's meaning.
        points: By world size.
        efficiencies: One per point, 1 at best.
    """
    head = [title, "batch per rank", "samples/s", "ms/update", "efficiency", "data wait"]
    head += ["vs minimal", "backward ms", "reduction ms", "exposed ms", "exposed"]
    rows = [head, ["---"] * len(head)]
    for point, efficiency in zip(points, efficiencies, strict=True):
        ratio = f"{point.step_ms / point.minimal_ms:.3f}" if point.minimal_ms else "-"
        parts = ["-"] * 4
        if (noted := point.communication) is not None:
            times = (noted.backward, noted.reduction, noted.exposed)
            parts = [*(f"{t:.2f}" for t in times), f"{noted.exposed / point.step_ms:.1%}"]
        batch = point.global_batch // point.world_size
        numbers = (f"{point.rate:.0f}", f"{point.step_ms:.2f}", f"{efficiency:.1%}")
        wait = f"{point.wait_fraction:.1%}"
        rows.append([str(point.world_size), str(batch), *numbers, wait, ratio, *parts])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
