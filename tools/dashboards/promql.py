"""Build PromQL for the dashboards from the declarations of the metrics."""

from ddp_wire.families import Family

JOBS = 'namespace=~"$namespace"'
"""Matchers of the series of all jobs in the selected namespaces."""
JOB = 'namespace="$namespace",ddpjob="$ddpjob"'
"""Matchers of the series of the selected job."""
WORKERS = JOB + ',node=~"$node"'
"""Matchers of the series of the job's worker pods on the selected Kubernetes nodes."""
OPERATORS = 'namespace=~"$operator_namespace",pod=~"$operator"'
"""Matchers of the series of the selected operator replicas."""
RATE_WINDOW = "$__rate_interval"
RANGE_WINDOW = "$__range"
MOST_SERIES = 20
"""Maximum number of series in a panel with one series per rank, node or GPU."""


def series(family: Family, scope: str = "", *, suffix: str = "", window: str = "") -> str:
    """Return the PromQL selector of a metric."""
    matchers = f"{{{scope}}}" if scope else ""
    return family.name + suffix + matchers + (f"[{window}]" if window else "")


def aggregate(operator: str, by: str, expression: str) -> str:
    """Return a PromQL aggregation by labels; over all series if `by` is empty."""
    return f"{operator} by ({by}) ({expression})" if by else f"{operator}({expression})"


def newest(family: Family, scope: str, by: str = "") -> str:
    """Return PromQL for the newest value per label set.

    While the operator or a pod is replaced, the old and the new pod may both have a series.
    """
    return aggregate("max", by, series(family, scope))


def rate(family: Family, scope: str, by: str = "", *, operator: str = "sum") -> str:
    """Return PromQL for the rate of a counter per second."""
    return aggregate(operator, by, f"rate({series(family, scope, window=RATE_WINDOW)})")


def increase(family: Family, scope: str, by: str = "", *, window: str = RATE_WINDOW) -> str:
    """Return PromQL for the increase of a counter within a window."""
    return aggregate("sum", by, f"increase({series(family, scope, window=window)})")


def quantile(
    share: float, family: Family, scope: str = "", by: str = "", *, window: str = RATE_WINDOW
) -> str:
    """Return PromQL for a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    buckets = series(family, scope, suffix="_bucket", window=window)
    return f"histogram_quantile({share}, sum by ({labels}) (rate({buckets})))"


def most(expression: str) -> str:
    """Return PromQL for the series with the highest values."""
    return f"topk({MOST_SERIES}, {expression})"


def least(expression: str) -> str:
    """Return PromQL for the series with the lowest values."""
    return f"bottomk({MOST_SERIES}, {expression})"


def age(family: Family, scope: str, by: str = "") -> str:
    """Return PromQL for the seconds since a timestamp."""
    return f"time() - {newest(family, scope, by)}"
