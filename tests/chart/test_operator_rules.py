"""Messages of the generated rules on what the operator writes. The API tests play the rules."""

import re
from typing import Any

import pytest
import yaml

from tools.operator_policy import build_operator_rules

Rule = dict[str, Any]

_VALUE = re.compile(r"may not create pods with this value of spec\.(\w+),")
_FIELD = re.compile(r"object\.spec\.(?!all\(|filter\()\??(\w+)")
_LIST = re.compile(r"in (\[[^\]]+\])")


def pod_rules(policy: str) -> list[Rule]:
    rules: list[Rule] = yaml.safe_load(build_operator_rules())["pods"][policy]
    return rules


@pytest.mark.parametrize("policy", ["scheduling", "off"])
def test_message_of_a_rule_names_the_field_that_the_rule_checks(policy: str) -> None:
    named = {
        found[1]: set(_FIELD.findall(rule["expression"]))
        for rule in pod_rules(policy)
        if (found := _VALUE.search(rule["message"]))
    }
    assert len(named) >= 13
    # A value may depend on whether the pod uses the network of its Kubernetes node.
    own = {field: fields - ({"hostNetwork"} - {field}) for field, fields in named.items()}
    assert own == {field: {field} for field in named}


@pytest.mark.parametrize("policy", ["scheduling", "off"])
def test_message_of_a_rule_lists_the_same_fields_as_the_rule(policy: str) -> None:
    """The message looks for the first key that the rule does not allow."""
    naming = [rule for rule in pod_rules(policy) if "messageExpression" in rule]
    assert len(naming) == 3
    for rule in naming:
        message, expression = rule["messageExpression"], rule["expression"]
        assert message.startswith(f"'{rule['message']}: ' + string(")
        assert set(_LIST.findall(message)) == set(_LIST.findall(expression)) != set()
