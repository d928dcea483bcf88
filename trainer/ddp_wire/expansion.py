"""References to variables, as Kubernetes expands them in the values and arguments of a container.

`$(NAME)` is the value of a variable, and `$$` is one `$`. A reference to an unknown variable stays
as it is, and so does every other `$`.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with its references replaced, as the kubelet does it."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] else variables.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """Return the text that `expand` turns into the given one, for any values of the variables."""
    return text.replace("$", "$$")
