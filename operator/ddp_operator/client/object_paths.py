"""Build the URL paths of objects in a namespace, and check the names that users give."""

import re
from urllib.parse import quote

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_name(text: str) -> bool:
    """Return whether an object can have this name. `..` and an empty text are no names."""
    return _NAME.fullmatch(text) is not None


def is_namespace(text: str) -> bool:
    """Return whether a namespace can have this name."""
    return _LABEL.fullmatch(text) is not None


def path_in(root: str, namespace: str, *parts: str) -> str:
    """Return the path of objects of a namespace, of one of them, or of its subresource.

    Args:
        root: Path of the API group.
        namespace: Name of the namespace.
        parts: Plural of the kind, and then perhaps a name and a subresource. They are escaped.
    """
    escaped = (quote(part, safe="") for part in (namespace, *parts))
    return "/".join([root, "namespaces", *escaped])
