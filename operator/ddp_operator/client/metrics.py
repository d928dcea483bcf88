"""Turn the events of a run into rows for a data frame."""

from collections.abc import Iterable
from typing import Any

from ddp_operator.report.history import read_history


def metric_rows(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the progress reports and evaluations of rank 0 as rows, in the order of their times.

    A row has the keys `time` (Unix seconds), `attempt`, `kind` (progress or eval) and `step`. A row
    of progress also has `loss`, `samples_per_second` and `lr`, a row of an evaluation the name of
    each metric. A key without a value, for example a loss that was not finite, has None.
    """
    history = read_history(lines)
    rows: list[dict[str, Any]] = []
    for point in history.points:
        row = {"loss": point.loss, "samples_per_second": point.rate, "lr": point.learning_rate}
        number = history.attempts[point.attempt].number
        rows.append({"time": point.time, "attempt": number, "kind": "progress"})
        rows[-1] |= {"step": point.step, **row}
    for found in history.evaluations:
        number = history.attempts[found.attempt].number
        rows.append({"time": found.time, "attempt": number, "kind": "eval", "step": found.step})
        rows[-1] |= found.metrics
    return sorted(rows, key=lambda row: row["time"])
