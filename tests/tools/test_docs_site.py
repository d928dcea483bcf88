"""The documentation site: its navigation, its links, and a build without a warning."""

import html.parser
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tools.docs_site import (
    DOCS,
    ROOT,
    navigation,
    origin,
    outside_files,
    place,
    with_separate_lists,
    with_site_links,
)

INDEX = """# Documentation
Every page.

## You train
Start with the [quickstart](use/quickstart.md).

**A job**
- [How a job runs](use/jobs.md): attempts
- [runbooks](operate/runbooks/README.md), one for each alert

## Reference
- [Values](../charts/README.md)
"""


def pages_in(entries: list[Any]) -> set[str]:
    """Return the pages of a navigation."""
    found: set[str] = set()
    for entry in entries:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            found |= pages_in(value) if isinstance(value, list) else {value}
    return found


def test_navigation_follows_the_index() -> None:
    home, train, reference = navigation(INDEX)
    assert home == {"Home": "README.md"}
    [quickstart, job] = train["You train"]
    assert quickstart == {"Quickstart": "use/quickstart.md"}
    [runs, runbooks] = job["A job"]
    assert runs == {"How a job runs": "use/jobs.md"}
    assert runbooks["Runbooks"][0] == "operate/runbooks/README.md"
    assert "operate/runbooks/DDPGpuHot.md" in runbooks["Runbooks"]
    assert reference == {"Reference": [{"Values": "project/charts/README.md"}]}


def test_navigation_contains_every_page() -> None:
    listed = pages_in(navigation((DOCS / "README.md").read_text(encoding="utf-8")))
    written = {str(place(page)) for page in DOCS.rglob("*.md")}
    assert written - listed == set()


@pytest.mark.parametrize(
    ("link", "on_site"),
    [
        ("volumes.md", "volumes.md"),
        ("../operate/install.md#x", "../operate/install.md#x"),
        ("../../charts/README.md#values", "../project/charts/README.md#values"),
        ("../../manifests/samples/kueue.yaml", "../project/manifests/samples/kueue.yaml"),
        ("../../charts", "../project/charts/README.md"),
        ("https://example.com/a.md", "https://example.com/a.md"),
        ("#progress", "#progress"),
        ("missing.md", "missing.md"),
    ],
)
def test_link_of_the_site(link: str, on_site: str) -> None:
    page = DOCS / "use" / "jobs.md"
    assert with_site_links(f"See [the page]({link}).", page) == f"See [the page]({on_site})."


def test_link_to_a_folder_without_a_page_becomes_text() -> None:
    page = ROOT / "CONTRIBUTING.md"
    assert with_site_links("Edit [the chart](charts/templates).", page) == "Edit the chart."


def test_examples_keep_their_links() -> None:
    text = "```markdown\n[a](../../charts/README.md)\n```\n"
    assert with_site_links(text, DOCS / "use" / "jobs.md") == text


def test_list_below_a_paragraph_becomes_a_list() -> None:
    text = "**A job**\n- one\n  more\n- two\n\n```\nx\n- y\n```\ntext\n1. z\n"
    expected = "**A job**\n\n- one\n  more\n- two\n\n```\nx\n- y\n```\ntext\n\n1. z\n"
    assert with_separate_lists(text) == expected
    assert with_separate_lists(expected) == expected


def test_place_and_origin_of_a_page_belong_together() -> None:
    for path in (DOCS / "use" / "jobs.md", ROOT / "charts" / "README.md"):
        assert origin(str(place(path))) == path


def test_site_contains_pages_that_only_other_files_link_to() -> None:
    found = outside_files()
    assert ROOT / "CONTRIBUTING.md" in found
    assert all(path.is_file() and not path.is_relative_to(DOCS) for path in found)


class Links(html.parser.HTMLParser):
    """The local addresses and the anchors of one HTML page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}
        address = given.get("href") if tag == "a" else given.get("src")
        if address and not urlsplit(address).scheme and not urlsplit(address).netloc:
            self.targets.add(unquote(address))


@pytest.mark.slow
def test_site_builds_without_a_warning_and_has_no_dead_link() -> None:
    built = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    site = ROOT / "dist" / "site"
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 100
    dead = []
    for page, links in pages.items():
        for address in links.targets:
            path, _, anchor = address.partition("#")
            target = (page.parent / path).resolve() if path else page
            known = pages.get(target)
            if not target.exists() or (anchor and known and anchor not in known.anchors):
                dead.append(f"{page.relative_to(site)}: {address}")
    assert dead == []
