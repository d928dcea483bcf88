"""Render the dashboards of the chart from the data of a Prometheus.

python -m tools.rendering --url http://127.0.0.1:9090 --minutes 30 --output DIR \
        --variable namespace=team-a --variable ddpjob=digits
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness.install import ROOT
from tools.rendering.page import build_page
from tools.rendering.source import Source, prometheus

DASHBOARDS = ROOT / "charts" / "dashboards"


def render(
    url: str,
    output: Path,
    *,
    start: float,
    end: float,
    scrape_seconds: float,
    variables: Mapping[str, str],
) -> list[Path]:
    """Write one page per dashboard into a folder, and return the pages."""
    output.mkdir(parents=True, exist_ok=True)
    pages = []
    for file in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        names = {one["name"] for one in dashboard["templating"]["list"]}
        own = {name: value for name, value in variables.items() if name in names}
        source = Source(prometheus(url), start, end, scrape_seconds, own)
        page = output / f"{file.stem}.html"
        page.write_text(build_page(dashboard, source), encoding="utf-8")
        pages.append(page)
    return pages


def main() -> None:
    """Render all dashboards and print the paths of the pages."""
    parser = argparse.ArgumentParser(description="Renders the dashboards of the chart.")
    parser.add_argument("--url", required=True, help="address of a Prometheus")
    parser.add_argument("--minutes", type=float, default=180, help="length of the time range")
    parser.add_argument("--scrape-seconds", type=float, default=15)
    parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    end = time.time()
    pages = render(
        options.url,
        options.output,
        start=end - 60 * options.minutes,
        end=end,
        scrape_seconds=options.scrape_seconds,
        variables=dict(one.split("=", 1) for one in options.variable),
    )
    print("\n".join(map(str, pages)))


if __name__ == "__main__":
    main()
