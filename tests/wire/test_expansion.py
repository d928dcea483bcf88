"""References to variables, by the rules of Kubernetes."""

import pytest

from ddp_wire.expansion import escape, expand

VARIABLES = {"A": "1", "B": "$(A)", "EMPTY": "", "A B": "2"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(B)", "1-$(A)"),
        ("$(EMPTY)|", "|"),
        ("$(A B)", "2"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(A$(A))", "$(A$(A))"),
        ("$(A", "$(A"),
        ("$A ${A} $", "$A ${A} $"),
        ("price: 5$$", "price: 5$"),
        ("", ""),
    ],
)
def test_variable_references_are_expanded_as_by_a_kubelet(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded
    assert expand(escape(text), VARIABLES) == text
