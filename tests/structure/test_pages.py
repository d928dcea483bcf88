"""Tests that each page is reachable within two steps and short enough to read."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
STEPS = 2
MOST_WORDS = 2500
MOST_README_WORDS = 900
GENERATED = DOCS / "reference"


def linked(page: Path) -> set[Path]:
    """Return the pages to which a page links. A link to a folder leads to its README.md."""
    found = set()
    for path in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve()
        found.add(target / "README.md" if target.is_dir() else target)
    return {target for target in found if target.suffix == ".md" and target.exists()}


def reachable(start: Path, steps: int) -> set[Path]:
    """Return all pages that are reachable in at most this many steps."""
    found = newest = {start}
    for _ in range(steps):
        newest = {target for page in newest for target in linked(page)} - found
        found = found | newest
    return found


def words(page: Path) -> int:
    """Return the number of words of a page, including tables and examples."""
    return len(page.read_text(encoding="utf-8").split())


def test_each_page_is_two_steps_from_the_index() -> None:
    pages = set(DOCS.rglob("*.md"))
    assert len(pages) > 50
    assert pages - reachable(INDEX, STEPS) == set()


def test_each_written_page_is_in_the_index() -> None:
    pages = {page for home in ("use", "operate", "develop") for page in (DOCS / home).glob("*.md")}
    assert pages - linked(INDEX) == set()


def test_written_pages_have_at_most_2500_words() -> None:
    lengths = {page.relative_to(DOCS): words(page) for page in DOCS.rglob("*.md")}
    limited = {page for page in lengths if GENERATED not in (DOCS / page).parents}
    assert len(limited) > 50
    assert {page: lengths[page] for page in limited if lengths[page] > MOST_WORDS} == {}


def test_readme_has_at_most_900_words() -> None:
    assert words(ROOT / "README.md") <= MOST_README_WORDS


def test_page_without_a_link_to_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.md").write_text(
        "[a](a.md#x) [f](folder/) [no](no.md) [web](https://a.b/c.md)"
    )
    (tmp_path / "a.md").write_text("[c](folder/c.md)")
    (tmp_path / "folder" / "README.md").write_text("")
    (tmp_path / "folder" / "c.md").write_text("")
    names = {page.name for page in reachable(tmp_path / "index.md", 1)}
    assert names == {"index.md", "a.md", "README.md"}
    assert tmp_path / "folder" / "c.md" in reachable(tmp_path / "index.md", 2)


def test_tests_that_pages_name_exist() -> None:
    named = {
        path
        for page in DOCS.rglob("*.md")
        for path in re.findall(r"`(tests/[\w/.-]+\.py)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert {path for path in named if not (ROOT / path).exists()} == set()
