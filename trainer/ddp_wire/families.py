"""Type of the declarations from which metrics and their reference documentation are generated."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Type of a metric, as in the text format of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """All series of one metric name.

    Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for counters.
    """

    name: str
    kind: Kind
    help: str
    """One sentence. The unit is part of the name."""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without infinity."""


UPDATE_SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the buckets in which ranks count their updates, in seconds."""

WORKER_PREFIXES = ("ddp_agent", "ddp_gpu", "ddp_train")
"""Prefixes of all metrics that worker pods export. Prometheus drops other metrics of worker pods,
because a tenant decides what its pods serve."""
