"""Links between the repository's pages lead to files and headings that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def pages() -> list[Path]:
    """Return all pages of the repository, without those of packages in a virtual environment."""
    homes = [home for home in ROOT.iterdir() if home.is_dir() and home.name[0] != "."]
    return [*ROOT.glob("*.md"), *(page for home in homes for page in home.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def broken(page: Path) -> list[str]:
    """Return the links of a page whose target does not exist."""
    found = []
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in path or path.startswith("mailto:"):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{page.name}: {path}#{anchor}")
    return found


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert len(pages()) > 50
    assert [link for page in pages() for link in broken(page)] == []


def test_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` c\n[x](#a-b-c) [x](page.md#no) [x](no.md) [x](https://a.b/c#d)\n")
    assert broken(page) == ["page.md: page.md#no", "page.md: no.md#"]
