"""Tests that an invalid job gives one sentence that names the field, and no other exception."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from tests.operator.support import job_manifest, new_job

ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"nods": 2}, "spec.nods: unknown field"),
    ({"nodes": 0}, "spec.nodes: input should be greater than or equal to 1, got 0"),
    ({"nodes": "many"}, "spec.nodes: input should be a valid integer"),
    ({"checkpoint": {}}, "spec.checkpoint: one of claimName and claimTemplate must be set"),
    ({"env": [{"name": "A"}, {"name": "?"}]}, "spec.env.1.name: string should match pattern"),
    ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy: input should be 'None' or 'All'"),
    ({"command": []}, "spec.command: list should have at least 1 item after validation"),
]


def error_of(manifest: dict[str, Any]) -> str:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(manifest)
    return str(caught.value)


@pytest.mark.parametrize(("spec", "message"), ERRORS, ids=[s for _, s in ERRORS])
def test_error_names_the_field_and_the_requirement(spec: dict[str, Any], message: str) -> None:
    assert error_of(job_manifest(**spec)).startswith(message)


def test_error_shows_the_given_value() -> None:
    assert error_of(job_manifest(maxRestarts=-5)).endswith("got -5")


def test_error_stays_short_when_the_given_value_is_long() -> None:
    assert len(error_of(job_manifest(nodes="9" * 100_000))) < 400


def test_other_api_version_is_rejected_with_expected_and_given_version() -> None:
    error = error_of({**job_manifest(), "apiVersion": "ddp-trainer.dev/v9"})
    assert error == (
        "manifest: apiVersion must be 'ddp-trainer.dev/v1alpha1' and kind must be 'DDPJob',"
        " got apiVersion 'ddp-trainer.dev/v9', kind 'DDPJob'"
    )


def test_job_without_a_name_is_rejected() -> None:
    assert error_of({"apiVersion": API_VERSION, "kind": KIND}) == "metadata.name: field required"


def test_job_key_is_namespace_and_name() -> None:
    assert new_job("flowers").key == ("team-a", "flowers")


def test_invalid_status_is_rejected_with_its_field() -> None:
    error = error_of({**job_manifest(), "status": {"attempt": "first"}})
    assert error.startswith("status.attempt: ")


def test_unknown_status_fields_of_a_newer_operator_are_ignored() -> None:
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


def test_status_with_the_old_name_told_milliseconds_is_read_as_ordered_milliseconds() -> None:
    recovery = {"attempt": 2, "time": "2026-03-01T12:00:00Z", "toldMilliseconds": 150}
    status = parse_job({**job_manifest(), "status": {"lastRecovery": recovery}}).status
    assert status.last_recovery is not None
    assert status.last_recovery.ordered_milliseconds == 150
    written = status.model_dump(by_alias=True)["lastRecovery"]
    assert written["orderedMilliseconds"] == 150
    assert "toldMilliseconds" not in written


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
    """Return a strategy for objects with some of the model's field names and any values."""
    known = sorted(str(field.alias) for field in model.model_fields.values())
    return st.dictionaries(st.sampled_from(known) | PRINTABLE, JSON_VALUES, max_size=5)


def _parse_error(manifest: dict[str, Any]) -> str | None:
    """Return the error message, or None for a valid job. Other exceptions fail the test."""
    try:
        parse_job(manifest)
    except InvalidJobError as error:
        return str(error)
    return None


@pytest.mark.slow
@given(st.dictionaries(PRINTABLE | st.sampled_from(["apiVersion", "kind"]), JSON_VALUES))
def test_document_without_a_valid_kind_gives_a_one_line_error(
    manifest: dict[str, Any],
) -> None:
    error = _parse_error(manifest)
    assert error is not None
    assert error.splitlines() == [error]


@given(spec=_fields(DDPJobSpec), name=PRINTABLE)
def test_any_spec_gives_a_job_or_a_one_line_error(spec: dict[str, Any], name: str) -> None:
    error = _parse_error({**job_manifest(name), "spec": spec})
    if error is not None:
        assert error.splitlines() == [error]
        assert error.startswith(("spec", "metadata.name"))


@given(_fields(DDPJobStatus))
def test_any_status_gives_a_job_or_a_one_line_error(status: dict[str, Any]) -> None:
    error = _parse_error({**job_manifest(), "status": status})
    if error is not None:
        assert error.splitlines() == [error]
        assert error.startswith("status")


@given(st.none() | JSON_VALUES)
def test_any_metadata_gives_a_job_or_an_error(metadata: Any) -> None:
    error = _parse_error({**job_manifest(), "metadata": metadata})
    assert error is None or error.startswith("metadata")
