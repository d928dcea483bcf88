"""The blocks of code in the pages that users read."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_INDENTED = re.compile(r"\n\n {4,}\S")


@dataclass(frozen=True)
class Block:
    """A piece of code on a page."""

    page: Path
    line: int
    """Number of its first line, from 1."""
    language: str
    """Language that a fence names, or an empty text for code within a sentence."""
    text: str

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that users read: those of the root, `docs`, the chart and the manifests."""
    homes = (ROOT / name for name in ("docs", "charts", "manifests"))
    return [*sorted(ROOT.glob("*.md")), *(page for home in homes for page in home.rglob("*.md"))]


def fences(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        yield Block(page, line, match[2].strip(), textwrap.dedent(match[3]))


def inline_code(page: Path) -> Iterator[Block]:
    """Yield the pieces of code within the sentences of a page."""
    text = without_fences(page)
    for match in _INLINE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, "", re.sub(r"\s*\n\s*", " ", match[1]).replace("\\|", "|"))


def without_fences(page: Path) -> str:
    """Return the text of a page with empty lines in place of the fenced blocks."""
    return _FENCE.sub(lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8"))


def has_indented_code(page: Path) -> bool:
    """Return whether a page has code that is indented in place of fenced."""
    return _INDENTED.search(without_fences(page)) is not None


def fenced(*languages: str) -> list[Block]:
    """Return the blocks of these languages on all pages."""
    return [block for page in pages() for block in fences(page) if block.language in languages]
