"""Reading a job: a wrong one gives one sentence that names the field, and never anything else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from tests.operator.support import job_manifest, new_job

SENTENCES: list[tuple[dict[str, Any], str]] = [
    ({"nods": 2}, "spec.nods: unknown field"),
    ({"nodes": 0}, "spec.nodes: input should be greater than or equal to 1, got 0"),
    ({"nodes": "many"}, "spec.nodes: input should be a valid integer"),
    ({"checkpoint": {}}, "spec.checkpoint.claimName: field required"),
    ({"env": [{"name": "A"}, {"name": "?"}]}, "spec.env.1.name: string should match pattern"),
    ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy: input should be 'None' or 'All'"),
    ({"command": []}, "spec.command: list should have at least 1 item after validation"),
]


def refusal(manifest: dict[str, Any]) -> str:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(manifest)
    return str(caught.value)


@pytest.mark.parametrize(("spec", "sentence"), SENTENCES, ids=[s for _, s in SENTENCES])
def test_the_sentence_names_the_field_and_what_must_hold(
    spec: dict[str, Any], sentence: str
) -> None:
    assert refusal(job_manifest(**spec)).startswith(sentence)


def test_the_sentence_shows_what_was_given() -> None:
    assert refusal(job_manifest(maxRestarts=-5)).endswith("got -5")


def test_the_sentence_stays_short_when_what_was_given_is_long() -> None:
    assert len(refusal(job_manifest(nodes="9" * 100_000))) < 400


def test_another_kind_or_version_is_refused_by_name() -> None:
    said = refusal({**job_manifest(), "apiVersion": "ddp-trainer.dev/v9"})
    assert said == (
        "manifest: must be of apiVersion 'ddp-trainer.dev/v1alpha1', kind 'DDPJob',"
        " got apiVersion 'ddp-trainer.dev/v9', kind 'DDPJob'"
    )


def test_a_job_without_a_name_is_refused() -> None:
    assert refusal({"apiVersion": API_VERSION, "kind": KIND}) == "metadata.name: field required"


def test_a_job_knows_its_namespace_and_name() -> None:
    assert new_job("flowers").key == ("team-a", "flowers")


def test_a_status_that_cannot_be_read_is_refused_with_a_sentence() -> None:
    said = refusal({**job_manifest(), "status": {"attempt": "first"}})
    assert said.startswith("status.attempt: ")


def test_what_a_newer_operator_wrote_into_the_status_is_ignored() -> None:
    newer = {
        "attempt": 2,
        "goodput": "0.97",
        "conditions": [
            {
                "type": "Degraded",
                "status": "True",
                "reason": "SlowRank",
                "message": "",
                "lastTransitionTime": "2026-03-01T12:00:00Z",
            },
            {
                "type": "Rendezvoused",
                "status": "True",
                "reason": "AllRanksJoined",
                "message": "",
                "lastTransitionTime": "2026-03-01T12:00:00Z",
            },
        ],
    }
    status = parse_job({**job_manifest(), "status": newer}).status
    assert status.attempt == 2
    assert [c.type.value for c in status.conditions] == ["Rendezvoused"]


PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | PRINTABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3),
    max_leaves=8,
)


def _fields(model: type[DDPJobSpec | DDPJobStatus]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the model's own field names and any values."""
    known = sorted(str(field.alias) for field in model.model_fields.values())
    return st.dictionaries(st.sampled_from(known) | PRINTABLE, JSON_VALUES, max_size=5)


def _read(manifest: dict[str, Any]) -> str | None:
    """The refusal, if any. What is neither a job nor a refusal fails the test."""
    try:
        parse_job(manifest)
    except InvalidJobError as error:
        return str(error)
    return None


@given(st.dictionaries(PRINTABLE | st.sampled_from(["apiVersion", "kind"]), JSON_VALUES))
def test_no_document_makes_reading_fail_otherwise(manifest: dict[str, Any]) -> None:
    said = _read(manifest)
    assert said is not None
    assert said.splitlines() == [said]


@given(spec=_fields(DDPJobSpec), name=PRINTABLE)
def test_no_spec_makes_reading_fail_otherwise(spec: dict[str, Any], name: str) -> None:
    said = _read({**job_manifest(name), "spec": spec})
    if said is not None:
        assert said.splitlines() == [said]
        assert said.startswith(("spec", "metadata.name"))


@given(_fields(DDPJobStatus))
def test_no_status_makes_reading_fail_otherwise(status: dict[str, Any]) -> None:
    said = _read({**job_manifest(), "status": status})
    if said is not None:
        assert said.splitlines() == [said]
        assert said.startswith("status")


@given(st.none() | JSON_VALUES)
def test_no_metadata_makes_reading_fail_otherwise(metadata: Any) -> None:
    said = _read({**job_manifest(), "metadata": metadata})
    assert said is None or said.startswith("metadata")
