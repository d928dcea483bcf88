"""Measurements per world size, and the efficiencies and tables that follow from them."""

from collections.abc import Sequence

from pydantic import BaseModel


class Communication(BaseModel):
    """Parts of an average update in milliseconds, as DDP measures them on rank 0."""

    forward: float
    backward: float
    reduction: float
    overlap: float
    """Part of the reduction that overlaps with the backward pass."""

    @property
    def exposed(self) -> float:
        """Return the part of the reduction that does not overlap with computation."""
        return max(0.0, self.reduction - self.overlap)


class ScalingPoint(BaseModel):
    """Measurement at one world size and one global batch, on rank 0."""

    world_size: int
    global_batch: int
    step_ms: float
    """Milliseconds per update, including the wait for data."""
    wait_fraction: float
    """Fraction of the time of an update in which the rank waited for data."""
    minimal_ms: float | None = None
    """Milliseconds per update of the minimal loop. None if the strategy is not DDP."""
    communication: Communication | None = None
    """DDP's own measurements. None without DDP."""

    @property
    def rate(self) -> float:
        """Return samples per second, over all ranks."""
        return 1000 * self.global_batch / self.step_ms


def weak_efficiency(point: ScalingPoint, single: ScalingPoint) -> float:
    """Return rate_N / (N rate_1) at the same batch per rank.

    Args:
        point: Measurement at world size N.
        single: Measurement at world size 1.
    """
    return point.rate / (point.world_size * single.rate)


def strong_efficiency(point: ScalingPoint, single: ScalingPoint) -> float:
    """Return T_1 / (N T_N) at the same global batch.

    Args:
        point: Measurement at world size N.
        single: Measurement at world size 1.
    """
    return single.step_ms / (point.world_size * point.step_ms)


def table(title: str, points: Sequence[ScalingPoint], efficiencies: Sequence[float]) -> str:
    """Return measurements as a Markdown table, with one row per world size.

    Args:
        title: Header of the first column.
        points: Measurements by world size.
        efficiencies: One efficiency per measurement. 1 is ideal.
    """
    head = [title, "batch per rank", "samples/s", "ms/update", "efficiency", "data wait"]
    head += ["vs minimal", "backward ms", "reduction ms", "exposed ms", "exposed"]
    rows = [head, ["---"] * len(head)]
    for point, efficiency in zip(points, efficiencies, strict=True):
        ratio = f"{point.step_ms / point.minimal_ms:.3f}" if point.minimal_ms else "-"
        parts = ["-"] * 4
        if (measured := point.communication) is not None:
            times = (measured.backward, measured.reduction, measured.exposed)
            parts = [*(f"{t:.2f}" for t in times), f"{measured.exposed / point.step_ms:.1%}"]
        batch = f"{point.global_batch / point.world_size:.4g}"
        numbers = (f"{point.rate:.0f}", f"{point.step_ms:.2f}", f"{efficiency:.1%}")
        wait = f"{point.wait_fraction:.1%}"
        rows.append([str(point.world_size), batch, *numbers, wait, ratio, *parts])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
