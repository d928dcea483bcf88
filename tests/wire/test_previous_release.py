"""Documents that the previous release wrote: this release reads them and writes the same fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder, Heartbeat
from ddp_wire.wire_model import WireModel

RECORDED = Path(__file__).parent / "recorded"
"""Documents written by the code of commit c9c9f86. `status-all-fields` also has all newer
fields."""

MODELS: dict[str, type[WireModel]] = {
    "attempt-order": AttemptOrder,
    "heartbeat": Heartbeat,
    "status-all-fields": AgentStatus,
    "status-failed": AgentStatus,
    "status-preempted": AgentStatus,
    "status-running": AgentStatus,
    "status-starting": AgentStatus,
    "status-succeeded": AgentStatus,
    "status-waiting": AgentStatus,
    "termination-message": AgentStatus,
}


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def keys(document: Any) -> Any:
    """Return the document without its values, to compare its fields at all depths."""
    if isinstance(document, dict):
        return {name: keys(value) for name, value in document.items()}
    if isinstance(document, list):
        return [keys(value) for value in document]
    return None


def without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: without_nulls(v) for k, v in document.items() if v is not None}
    if isinstance(document, list):
        return [without_nulls(value) for value in document]
    return document


def test_every_recorded_document_has_a_model() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == set(MODELS)


@pytest.mark.parametrize(("name", "model"), MODELS.items(), ids=MODELS.keys())
def test_recorded_document_is_parsed_without_losing_a_field(
    name: str, model: type[WireModel]
) -> None:
    document = recorded(name)
    parsed = model.model_validate_json(json.dumps(document))
    assert json.loads(parsed.to_json()) == without_nulls(document)


@pytest.mark.parametrize("name", ["attempt-order", "status-all-fields", "status-failed"])
def test_documents_of_this_release_have_the_recorded_fields_and_no_others(name: str) -> None:
    """A new field needs a new record: neighbouring releases must still understand each other."""
    document = recorded(name)
    parsed = MODELS[name].model_validate_json(json.dumps(document))
    empty_fields = name == "status-all-fields"
    written = parsed.model_dump_json(by_alias=True, exclude_none=not empty_fields)
    assert keys(json.loads(written)) == keys(document)


def test_recorded_status_with_all_fields_sets_every_field_of_the_model() -> None:
    """Otherwise the comparison of fields could miss one."""
    status = AgentStatus.model_validate(recorded("status-all-fields"))
    first, nested = status.ranks[0], [status.timeline, status.progress, status.checkpoint]
    for model in (status, first, first.progress, first.checkpoint, *nested):
        assert model is not None
        assert None not in model.__dict__.values()
    assert status.failure is not None
    assert status.failure.signal == "SIGKILL", "a signal excludes an exit code"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("status-waiting", AgentPhase.WAITING),
        ("status-starting", AgentPhase.STARTING),
        ("status-running", AgentPhase.TRAINING),
        ("status-failed", AgentPhase.FAILED),
        ("status-preempted", AgentPhase.PREEMPTED),
        ("status-succeeded", AgentPhase.SUCCEEDED),
        ("termination-message", AgentPhase.FAILED),
    ],
)
def test_recorded_status_keeps_its_phase(name: str, phase: AgentPhase) -> None:
    assert AgentStatus.model_validate(recorded(name)).phase is phase
