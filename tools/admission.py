"""Generate the chart's admission rules for the podTemplate policies."""

from typing import Any

import yaml

from ddp_operator.api.pod_policy import RULES, VARIABLES, PodRule, PodTemplatePolicy

_HEAD = """\
# Generated from operator/ddp_operator/api/pod_policy.py by `make generate`.
# Variables and rules of the ValidatingAdmissionPolicy on DDPJobs, by value of podTemplate.
"""


def build_pod_template_rules() -> str:
    """Return the chart's file with the rules of each podTemplate policy that has rules."""
    document = {
        policy.value: {
            "variables": [{"name": name, "expression": cel} for name, cel in VARIABLES.items()],
            "validations": [_validation(rule, policy) for rule in rules],
        }
        for policy, rules in RULES.items()
        if rules
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False, width=100_000)


def _validation(rule: PodRule, policy: PodTemplatePolicy) -> dict[str, Any]:
    return {
        "expression": rule.cel,
        "message": f"spec.podTemplate{rule.rest(policy)}",
        "messageExpression": f"({rule.cel_field}) + '{rule.rest(policy)}'",
    }
