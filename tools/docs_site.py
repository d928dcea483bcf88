"""Hooks of mkdocs: build the documentation site from pages that are written for the repository.

    make docs

The pages link to each other and to other files of the repository, as the code host shows them. The
hooks make a site of them without a second list of pages and without other links:

- The navigation follows from the index, `docs/README.md`: its headings are the sections.
- A file outside of `docs/` that a page links to becomes a part of the site, below `project/`.
- A link to a folder leads to the README.md of the folder.
- A list directly below a paragraph is a list, as on the code host.

mkdocs calls the functions `on_…`. The other functions depend on nothing but their arguments.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = PurePosixPath("project")
"""Folder of the site for files outside of `docs/`."""
_LINK = re.compile(r"(?<!`)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^()\s#]*)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_FENCE_OR_LIST = re.compile(
    r"^(```|~~~).*?^\1|^(?![-*] |\d+\. |[ |#\n])[^\n]*\n(?=[-*] |\d+\. )", re.DOTALL | re.MULTILINE
)
_HEADING = re.compile(r"^(?:## (.+)|\*\*([^*]+)\*\*)$")

Navigation = list[dict[str, Any]]


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config.nav = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside of `docs/` that pages link to, directly or by way of such a file."""
    from mkdocs.structure.files import (  # type: ignore[import-not-found]  # noqa: PLC0415 - only the site's environment has it
        File,
    )

    for path in sorted(outside_files()):
        uri = str(OUTSIDE / path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of a page with the links of the site."""
    return with_separate_lists(with_site_links(markdown, origin(page.file.src_uri)))


def with_separate_lists(markdown: str) -> str:
    """Return the text with an empty line before each list, without which mkdocs shows no list."""
    return _FENCE_OR_LIST.sub(lambda match: match[0] if match[1] else f"{match[0]}\n", markdown)


def origin(uri: str) -> Path:
    """Return the file from which a page of the site is made."""
    inside = PurePosixPath(uri)
    if inside.is_relative_to(OUTSIDE):
        return ROOT / inside.relative_to(OUTSIDE)
    return DOCS / inside


def place(path: Path) -> PurePosixPath:
    """Return the place of a file of the repository within the site."""
    if path.is_relative_to(DOCS):
        return PurePosixPath(path.relative_to(DOCS).as_posix())
    return OUTSIDE / path.relative_to(ROOT).as_posix()


def navigation(index: str) -> Navigation:
    """Return the navigation that an index describes: sections, their groups, and pages."""
    found: Navigation = [{"Home": "README.md"}]
    entries: list[Any] = []
    section: list[Any] = []
    for line in index.splitlines():
        if heading := _HEADING.match(line):
            entries = []
            if heading[1]:
                section = entries
                found.append({heading[1]: section})
            else:
                section.append({heading[2]: entries})
        elif found[1:]:
            entries += [_entry(text, link) for text, link in _pages(line)]
    return found


def _entry(text: str, link: str) -> dict[str, Any]:
    """Return the entry of a page. Beside the README.md of a folder it has the folder's pages."""
    title = text[:1].upper() + text[1:]
    path = (DOCS / link).resolve()
    if path.name != "README.md" or not path.is_relative_to(DOCS):
        return {title: str(place(path))}
    pages = sorted(one for one in path.parent.glob("*.md") if one != path)
    return {title: [str(place(path)), *(str(place(one)) for one in pages)]}


def _pages(line: str) -> Iterator[tuple[str, str]]:
    for text, link, _ in _LINK.findall(line):
        if link.endswith(".md"):
            yield text, link


def outside_files() -> set[Path]:
    """Return the files outside of `docs/` that the site needs."""
    found: set[Path] = set()
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for _, link, _ in _LINK.findall(text):
            target = linked_file(page, link)
            if target is None or target.is_relative_to(DOCS) or target in found:
                continue
            found.add(target)
            if target.suffix == ".md":
                waiting.append(target)
    return found


def linked_file(page: Path, link: str) -> Path | None:
    """Return the file of the repository to which a link leads, or None for any other address."""
    if not link or ":" in link:
        return None
    path = Path(os.path.normpath(page.parent / link))
    if path.is_dir():
        path /= "README.md"
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def with_site_links(markdown: str, page: Path) -> str:
    """Return the text of a page of the repository with the links of the site.

    A link to a folder without a README.md becomes plain text, because the site shows no folders.
    """
    here = place(page).parent

    def changed(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        if not link or ":" in link:
            return match[0]
        target = linked_file(page, link)
        if target is None:
            folder = Path(os.path.normpath(page.parent / link))
            return text if folder.is_dir() else match[0]
        return f"[{text}]({os.path.relpath(place(target), here)}{anchor})"

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(changed, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(changed, markdown[end:])])
