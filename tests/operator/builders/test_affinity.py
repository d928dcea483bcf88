"""Affinity of worker pods: the job's own terms stay, and the operator's are appended."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.api.status import StrikeStatus
from ddp_operator.builders.affinity import (
    NODES,
    OTHER_PODS,
    PODS,
    PREFERRED,
    REQUIRED,
    NodeLabel,
    Term,
    with_terms,
)
from ddp_operator.builders.pod import build_pod
from tests.operator.support import DEFAULTS, NOW, new_job, with_status

ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
MUST = {REQUIRED: {"nodeSelectorTerms": [ZONE]}}
OWN = {"weight": 1, "preference": ZONE}


def strikes(**counts: int) -> list[StrikeStatus]:
    return [StrikeStatus(node=n, count=c, last_time=NOW) for n, c in counts.items()]


def affinity_of(template: Any = None, **counts: int) -> Any:
    """Return the affinity of a new pod of a job that has strikes and this affinity."""
    spec: dict[str, Any] = {}
    if template is not None:
        spec["podTemplate"] = {"spec": {"affinity": template}}
    job = with_status(new_job(**spec), strikes=strikes(**counts))
    return build_pod(job, 0, 1, DEFAULTS)["spec"].get("affinity")


def against(*nodes: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return {"weight": 100, "preference": {"matchFields": fields}}


def test_pod_prefers_nodes_with_fewer_than_two_strikes() -> None:
    assert affinity_of() is None
    assert affinity_of(a=1) is None
    assert affinity_of(b=2, c=1, a=7) == {"nodeAffinity": {PREFERRED: [against("a", "b")]}}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"nodeAffinity": {PREFERRED: [OWN]}}, {"nodeAffinity": {PREFERRED: [OWN, against("a")]}}),
        ({"nodeAffinity": MUST}, {"nodeAffinity": {**MUST, PREFERRED: [against("a")]}}),
        ({"nodeAffinity": None}, {"nodeAffinity": {PREFERRED: [against("a")]}}),
        ({"nodeAffinity": {PREFERRED: None}}, {"nodeAffinity": {PREFERRED: [against("a")]}}),
        (
            {"podAffinity": {"x": 1}},
            {"podAffinity": {"x": 1}, "nodeAffinity": {PREFERRED: [against("a")]}},
        ),
        # The API server reports these.
        ({"nodeAffinity": "x"}, {"nodeAffinity": "x"}),
        ({"nodeAffinity": {PREFERRED: "x"}}, {"nodeAffinity": {PREFERRED: "x"}}),
        ("x", "x"),
    ],
)
def test_strikes_are_added_to_the_affinity_of_the_job(own: Any, expected: Any) -> None:
    """A preference of the podTemplate must not replace the preference against struck nodes."""
    assert affinity_of(own) == own
    assert affinity_of(own, a=2) == expected


PLACES = [(g, r) for g in (NODES, PODS, OTHER_PODS) for r in (PREFERRED, REQUIRED)]
LISTS = [place for place in PLACES if place != (NODES, REQUIRED)]
"""Lists of an affinity to which the operator may add."""
JUNK: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})
)
ITEMS = st.lists(st.dictionaries(st.sampled_from("ab"), JUNK, max_size=2), max_size=3)
ALTERNATIVES = st.fixed_dictionaries({"nodeSelectorTerms": ITEMS})
GROUP = st.fixed_dictionaries(
    {}, optional={PREFERRED: ITEMS | JUNK, REQUIRED: ITEMS | ALTERNATIVES | JUNK, "unknown": JUNK}
)
AFFINITY = (
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys((NODES, PODS, OTHER_PODS, "unknown"), GROUP | JUNK)
    )
    | JUNK
)
TERMS = st.lists(
    st.builds(lambda at, n: Term(at[0], at[1], {"n": n}), st.sampled_from(LISTS), st.integers())
)


def items_at(affinity: Any, group: str, rule: str) -> Any:
    """Return the value of a list of an affinity. [] if it is absent, None for a wrong type."""
    for name in (group, rule):
        if not isinstance(affinity or {}, dict):
            return None
        affinity = (affinity or {}).get(name)
    return affinity or []


def others(affinity: Any, places: set[tuple[str, str]]) -> Any:
    """Return an affinity without the lists at some places and without empty groups."""
    if not isinstance(affinity, dict):
        return {}
    rules = {name: {rule for group, rule in places if group == name} for name in affinity}
    kept = {
        name: {k: v for k, v in group.items() if k not in rules[name]}
        if isinstance(group, dict)
        else group
        for name, group in affinity.items()
    }
    return {name: group for name, group in kept.items() if group or not rules[name]}


@pytest.mark.slow
@given(AFFINITY, TERMS)
def test_terms_are_appended_to_any_affinity_of_the_job(own: Any, terms: list[Term]) -> None:
    """Each list begins with the job's items, and all other parts stay as they were."""
    before = copy.deepcopy(own)
    found = with_terms(own, terms)
    assert own == before, "the manifest of the job does not change"
    places = {(term.group, term.rule) for term in terms}
    fitting = {place for place in places if isinstance(items_at(own, *place), list)}
    for place in fitting:
        added = [term.value for term in terms if (term.group, term.rule) == place]
        assert items_at(found, *place) == [*items_at(own, *place), *added]
    if fitting:
        assert others(found, fitting) == others(own, fitting)
    else:
        assert found == own, "the API server reports a wrong type"


def test_required_term_of_node_affinity_is_refused() -> None:
    """Such a term would be an alternative to the terms of the job, not an addition."""
    with pytest.raises(ValueError, match="alternatives"):
        Term(NODES, REQUIRED, {})


LABEL = NodeLabel("gpu", "L4")
EXPRESSION = {"key": "gpu", "operator": "In", "values": ["L4"]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([ZONE], [{"matchExpressions": [*ZONE["matchExpressions"], EXPRESSION]}]),
        ([BY_NAME], [{**BY_NAME, "matchExpressions": [EXPRESSION]}]),
        # An empty alternative matches no node.
        ([{}, {"matchExpressions": []}], [{}, {"matchExpressions": []}]),
        # The API server reports these.
        ([], []),
        ("x", "x"),
        (["x", {"matchExpressions": "x"}], ["x", {"matchExpressions": "x"}]),
    ],
)
def test_required_label_is_added_to_each_node_selector_term_of_the_job(
    own: Any, expected: Any
) -> None:
    def affinity(alternatives: Any) -> Any:
        return {NODES: {PREFERRED: [OWN], REQUIRED: {"nodeSelectorTerms": alternatives}}}

    assert with_terms(affinity(own), [LABEL]) == affinity(expected)


@pytest.mark.parametrize("own", [None, {}, {NODES: None}, {NODES: {REQUIRED: None}}])
def test_required_label_is_the_only_node_selector_term_if_the_job_has_none(own: Any) -> None:
    only = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}}
    assert with_terms(own, [LABEL]) == {NODES: only}


@pytest.mark.parametrize("own", ["x", {NODES: "x"}, {NODES: {REQUIRED: "x"}}])
def test_affinity_of_a_wrong_type_is_left_to_the_api_server(own: Any) -> None:
    assert with_terms(own, [LABEL]) == own


@given(AFFINITY, TERMS)
def test_required_label_and_terms_give_the_same_affinity_in_any_order(
    own: Any, terms: list[Term]
) -> None:
    before = copy.deepcopy(own)
    found = with_terms(own, [LABEL, *terms])
    assert own == before, "the manifest of the job does not change"
    assert found == with_terms(own, [*terms, LABEL])
