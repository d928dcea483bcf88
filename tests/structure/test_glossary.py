"""The glossary names identifiers that exist, and its retired words are in no product file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "develop" / "glossary.md"
HOMES = (ROOT / "operator", ROOT / "trainer")
PRODUCT = ("operator", "trainer", "charts", "manifests", "docs", "README.md", "CONTRIBUTING.md")
TEXT = {".py", ".md", ".yaml", ".tpl", ".json", ".txt"}
OLD_FIELDS = ("toldMilliseconds", '"news"', "`news`")
"""Old JSON names that older releases write or read. Code and documents quote these names."""


def rows() -> list[list[str]]:
    """Term, meaning and identifier of each concept."""
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == 3 and row[2].startswith("`")]


def retired() -> set[str]:
    """The retired words."""
    text = GLOSSARY.read_text(encoding="utf-8").partition("## Retired words")[2]
    return set(re.findall(r"`([a-z]+)`", text))


def exists(identifier: str) -> bool:
    """Return whether a module, or a class, function or field in a module, has this full name."""
    names = identifier.split(".")
    for length in range(len(names), 0, -1):
        for home in HOMES:
            place = home.joinpath(*names[:length])
            if length == len(names) and (place / "__init__.py").exists():
                return True
            if place.with_suffix(".py").exists():
                tree = ast.parse(place.with_suffix(".py").read_text(encoding="utf-8"))
                return defines(tree, names[length:])
    return False


def defines(tree: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    """Return whether a module or class defines a dotted name, also through nested classes."""
    if not names:
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == names[0]:
            return defines(node, names[1:])
        if isinstance(node, ast.FunctionDef) and [node.name] == names:
            return True
        if isinstance(node, ast.AnnAssign) and [ast.unparse(node.target)] == names:
            return True
    return False


def product_files() -> Iterator[Path]:
    """All text files that a user of the product may read, without the glossary itself."""
    for name in PRODUCT:
        place = ROOT / name
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and file.suffix in TEXT and file != GLOSSARY:
                yield file


def words(text: str) -> set[str]:
    """Return all words in lower case; identifiers are split at underscores and capitals."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return set(re.findall(r"[a-z]+", parts.lower()))


def without_old_fields(text: str) -> str:
    """Return the text without the old JSON names, which contain retired words."""
    for name in OLD_FIELDS:
        text = text.replace(name, "")
    return text


def test_each_identifier_of_the_glossary_exists() -> None:
    identifiers = [row[2].strip("`") for row in rows()]
    assert len(identifiers) > 25
    assert [identifier for identifier in identifiers if not exists(identifier)] == []


def test_each_term_of_the_glossary_has_one_row_and_one_meaning() -> None:
    terms = [row[0] for row in rows()]
    assert sorted(set(terms)) == sorted(terms)
    assert all(row[1].endswith(".") for row in rows())


def test_no_retired_word_is_in_a_product_file() -> None:
    assert len(retired()) > 10
    found = {
        f"{file.relative_to(ROOT)}: {word}"
        for file in product_files()
        for word in words(without_old_fields(file.read_text(encoding="utf-8"))) & retired()
    }
    assert found == set()


def test_search_for_retired_words_finds_them_inside_identifiers() -> None:
    assert {"ladder", "vigil"} <= words("class AgentVigil: ladder_step = 1")
    assert not exists("ddp_operator.api.job.Missing")
    assert not exists("ddp_operator.missing")
