"""Read the docstrings of attributes, which Python does not keep at runtime."""

import ast
import inspect
import itertools
import textwrap
from types import ModuleType


def attribute_docs(owner: type | ModuleType) -> dict[str, str]:
    """Return the docstring that follows each assignment in a class or module, by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body if isinstance(owner, ModuleType) else _class_body(tree)
    found = {}
    for statement, after in itertools.pairwise(body):
        name, text = _assigned(statement), _text(after)
        if name and text:
            found[name] = " ".join(text.split())
    return found


def _class_body(tree: ast.Module) -> list[ast.stmt]:
    [definition] = tree.body
    return definition.body if isinstance(definition, ast.ClassDef) else []


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None
