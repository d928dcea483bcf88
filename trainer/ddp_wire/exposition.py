"""Build the metrics of each scrape from their declarations and the current values.

No series is kept between scrapes, so a series ends with the job or rank that it describes.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from ddp_wire.families import Family, Kind


class Samples:
    """Current values of several metrics."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._metrics = {family: _metric(family) for family in families}

    def add(self, family: Family, value: float | None, *labels: str | int) -> None:
        """Add one series of a counter or a gauge. Do nothing if the value is None."""
        if value is None:
            return
        self._metrics[family].add_sample(family.name, _labels(family, labels), value)

    def add_histogram(
        self, family: Family, counts: Sequence[int], total: float, *labels: str | int
    ) -> None:
        """Add one histogram.

        Args:
            family: Declaration of the histogram.
            counts: Number of observations in each bucket. The last bucket has no upper bound.
            total: Sum of the observations.
            labels: Label values, in the order of the declaration.
        """
        metric, own = self._metrics[family], _labels(family, labels)
        bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
        cumulative = list(accumulate(counts))
        for bound, count in zip(bounds, cumulative, strict=True):
            metric.add_sample(f"{family.name}_bucket", own | {"le": bound}, count)
        metric.add_sample(f"{family.name}_count", own, cumulative[-1])
        metric.add_sample(f"{family.name}_sum", own, total)

    def metrics(self) -> list[Metric]:
        """Return the metrics that have series."""
        return [metric for metric in self._metrics.values() if metric.samples]


def render(collector: Collector) -> bytes:
    """Return the metrics of one collector in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _metric(family: Family) -> Metric:
    # The library adds the suffix of a counter itself.
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    return Metric(name, family.help, family.kind)


def _labels(family: Family, values: Sequence[str | int]) -> dict[str, str]:
    return dict(zip(family.labels, map(str, values), strict=True))
