"""Build all dashboards as files."""

from tools.dashboards.fleet import fleet
from tools.dashboards.frame import to_json
from tools.dashboards.job import job
from tools.dashboards.operator import operator


def build_dashboards() -> dict[str, str]:
    """Return the JSON of each dashboard, by file name, which is the dashboard's uid."""
    return {f"{one.uid}.json": to_json(one) for one in (fleet(), job(), operator())}
