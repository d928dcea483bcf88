"""Expansion of `$(NAME)` in environment values and arguments, as the kubelet does it.

`$(NAME)` stands for the value of a variable, and `$$` for one `$`. A reference to an unknown
variable stays as it is, and so does every other `$`.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with its references replaced by the values of the variables."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] else variables.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """Return a text with each `$` doubled, from which `expand` restores the original text."""
    return text.replace("$", "$$")
