"""Build the documentation page about all limits from the module that defines them."""

import ast
import inspect
import re

from ddp_operator import limits
from ddp_operator.limits import Backoff, Rate

_SECTION = re.compile(r"# === (.+)")
_KIB = 1024
_DECISIONS = {"decision 7": "[decision 7](../develop/decisions/0007-hearing-agents.md)"}


def build_limits_page() -> str:
    """Return the page as Markdown."""
    source = inspect.getsource(limits)
    tree = ast.parse(source)
    parts = [
        "# Limits and rates of the operator",
        "This page is generated from `operator/ddp_operator/limits.py`.",
        (ast.get_docstring(tree) or "").rpartition("\n\n")[0],
    ]
    found = rows(tree)
    for number, line in enumerate(source.splitlines(), 1):
        if title := _SECTION.fullmatch(line):
            parts += [f"## {title[1]}", "| limit | value | why |\n| --- | --- | --- |"]
        elif number in found:
            parts[-1] += f"\n{found[number]}"
    page = "\n\n".join(parts) + "\n"
    for name, link in _DECISIONS.items():
        page = page.replace(name, link)
    return page


def rows(tree: ast.Module) -> dict[int, str]:
    """Return the table row of each constant in a module, by line number.

    Raises:
        TypeError: A constant has no docstring.
    """
    found = {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
            raise TypeError(f"{node.target.id} has no docstring")
        text = " ".join(str(after.value.value).split())
        found[node.lineno] = f"| `{node.target.id}` | {_value(node.target.id)} | {text} |"
    return found


def _value(name: str) -> str:
    value = getattr(limits, name)
    match value:
        case Rate(burst=burst, per_second=each):
            rest = f"{each:g} per s" if each >= 1.0 else f"1 per {1 / each:g} s"
            return f"{burst:g} at once, then {rest}"
        case Backoff(first=first, longest=longest):
            return f"{first:g} s, doubled up to {longest:g} s"
        case tuple():
            return ", ".join(f"{each:g}" for each in value) + " s"
        case _:
            return _number(name, value)


def _number(name: str, value: float) -> str:
    if name.endswith("BYTES"):
        return f"{value // _KIB} KiB" if value >= _KIB else f"{value} B"
    unit = {"_PER_SECOND": " per s", "_SECONDS": " s"}
    return f"{value:g}" + next((text for end, text in unit.items() if name.endswith(end)), "")
