"""Read YAML documents that may be hostile, with limits on size, depth and aliases."""

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

FILE_BYTES = 1 << 22
"""Maximum size of a file, in bytes. The API server accepts objects of at most 1.5 MiB."""
_DEPTH = 100
_NODES = 100_000
"""Maximum number of values in a document after each alias is replaced by its value."""
_VALUE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of PyYAML about values of a wrong format, for example `!!int ''`."""


def documents(text: str) -> list[Any]:
    """Return the documents in a text.

    Raises:
        yaml.YAMLError: The text is not YAML, exceeds a limit, or has a value of a wrong format.
    """
    try:
        return list(yaml.load_all(text, _Loader))
    except _VALUE_ERRORS as error:  # For example of the number after a backslash.
        raise yaml.YAMLError("a value is not valid") from error


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses documents with too deep nesting or too large aliases."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose one value. Refuse a document that is nested too deeply."""
        self._depth += 1
        try:
            if self._depth > _DEPTH:
                problem = f"must be nested at most {_DEPTH} deep"
                raise yaml.composer.ComposerError(None, None, problem, self.get_mark())
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Return a value. Refuse one that is not of the type of its tag."""
        try:
            return super().construct_object(node, deep)
        except _VALUE_ERRORS as error:
            problem = f"the value is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_document(self, node: Node) -> Any:
        """Return a document as Python objects. Refuse one that its aliases make too large."""
        count = _size(node, {})
        if count > _NODES:
            problem = f"must hold at most {_NODES:,} values, aliases included"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_document(node)


def _size(node: Node, known: dict[int, int]) -> int:
    """Return the number of values in a YAML node, counting each alias as a copy.

    A value that contains itself counts as more than the limit.
    """
    if isinstance(node, ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = _NODES + 1  # While it is counted, an alias of it is a cycle.
        children: list[Node] = []
        if isinstance(node, SequenceNode):
            children = node.value
        elif isinstance(node, MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]
