"""The wire contract: documents are complete, and neighbouring releases can read them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddp_operator.api.base import API_GROUP
from ddp_wire import contract
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import (
    AgentPhase,
    AgentStatus,
    AttemptOrder,
    CheckpointInfo,
    ExitProblem,
    Failure,
    Heartbeat,
    HungRank,
    InspectionRequest,
    Progress,
    RankInspection,
    RankPhase,
    RankTimes,
    Straggler,
    Timeline,
    TrainingTimes,
)
from ddp_wire.wire_model import WireModel

INSPECTION = RankInspection(waits=True, number=7, collectives=["all_reduce of [3]"])
HUNG = HungRank(rank=3, step=5, activity="data", seconds=31.0, inspection=INSPECTION)
FULL = AgentStatus(
    job_uid="uid-1",
    revision=7,
    node_index=1,
    attempt=2,
    phase=AgentPhase.FAILED,
    since=1.5,
    command=["torchrun", "--nnodes=2"],
    timeline=Timeline(noticed=0.5, ordered=1.0, launched=1.5, stepped=2.5),
    ranks=[
        Heartbeat(attempt=2, rank=3, local_rank=1, phase=RankPhase.TRAINING, at=1.0, resumed_from=4)
    ],
    progress=Progress(step=5, total_steps=9, loss=0.5, metrics={"a": 0.25}),
    checkpoint=CheckpointInfo(step=4, path="/c/ü", at=0.5),
    failure=Failure(attempt=2, at=1.25, signal="SIGKILL", secondary=True),
    hang=[HUNG],
)


def test_status_is_unchanged_after_serialisation() -> None:
    assert AgentStatus.model_validate_json(FULL.to_json()) == FULL


def test_memory_of_a_dropped_document_is_freed() -> None:
    one, other = (AgentStatus.model_validate_json(FULL.to_json()) for _ in range(2))
    assert one.command[0] is not other.command[0], "nothing else may hold the text"


def test_document_is_one_line_of_json_with_camel_case_fields_and_no_nulls() -> None:
    text = FULL.to_json()
    sent = json.loads(text)
    assert "\n" not in text
    assert sent["nodeIndex"] == 1
    assert sent["ranks"][0]["localRank"] == 1
    assert sent["progress"]["totalSteps"] == 9
    assert "exitCode" not in sent["failure"]


@pytest.mark.parametrize("model", WireModel.__subclasses__(), ids=lambda m: m.__name__)
def test_fields_of_a_newer_release_are_ignored(model: type[WireModel]) -> None:
    documents = {
        AgentStatus: FULL,
        Heartbeat: FULL.ranks[0],
        Progress: FULL.progress,
        CheckpointInfo: FULL.checkpoint,
        Failure: FULL.failure,
        RankTimes: RankTimes(updates=[1, 2], phase_seconds={"forward": 0.5}),
        Timeline: FULL.timeline,
        HungRank: HUNG,
        RankInspection: INSPECTION,
        Straggler: Straggler(rank=1, ratio=1.5, part="data"),
        TrainingTimes: TrainingTimes(training_seconds=1.5, data_wait_seconds=0.25),
        ExitProblem: ExitProblem(rank=1, message="failed after its work was done"),
        AttemptOrder: AttemptOrder(job_uid="uid-1", attempt=2),
        InspectionRequest: InspectionRequest(job_uid="uid-1", question="stacks:a"),
    }
    known = documents[model]
    assert known is not None
    sent = json.loads(known.to_json()) | {"goodput": {"ratio": 0.9}}
    assert model.model_validate(sent) == known


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(
    loss=NUMBERS,
    rate=NUMBERS,
    metrics=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
)
def test_any_progress_can_be_parsed(loss: float, rate: float, metrics: dict[str, float]) -> None:
    sent = Progress(step=1, loss=loss, samples_per_second=rate, metrics=metrics)
    assert Progress.model_validate_json(sent.to_json()).step == 1


HOSTILE = [
    {"timeline": {"ordered": "Infinity"}},
    {"timeline": {"ordered": 1.0, "stepped": 1e300}},
    {"since": float("nan")},
    {"attempt": 10**900},
    {"checkpoint": {"step": 1, "path": "/c", "at": -1.0}},
    {"failure": {"attempt": 1, "at": 1e18}},
    {"progress": {"step": 2**63}},
    {"checkpoint": {"step": 1, "path": "x" * 5000, "at": 1.0}},
    {"hang": [{"rank": 1, "step": 1, "activity": "data", "seconds": 1e300}]},
]


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: next(iter(change)))
def test_numbers_that_the_operator_cannot_use_are_refused(change: dict[str, Any]) -> None:
    document = {"nodeIndex": 0, "attempt": 1, "phase": "Training", "since": 1.0} | change
    with pytest.raises(ValidationError):
        AgentStatus.model_validate_json(json.dumps(document))


def test_labels_and_annotations_belong_to_the_api_group() -> None:
    names = [
        contract.LABEL_JOB_NAME,
        contract.LABEL_JOB_UID,
        contract.LABEL_NODE_INDEX,
        contract.ANNOTATION_ATTEMPT,
        contract.ANNOTATION_SPEC_HASH,
    ]
    assert contract.GROUP == API_GROUP
    assert all(name.startswith(f"{API_GROUP}/") for name in names)
    assert len(set(names)) == len(names)


def test_environment_variables_start_with_the_reserved_prefix() -> None:
    assert all(name.startswith("DDP_") for name in Env)


def test_exit_codes_differ_from_each_other_and_from_signals() -> None:
    codes: list[Any] = [code.value for code in ExitCode.__members__.values()]
    assert len(set(codes)) == len(codes)
    assert all(0 <= code < 126 for code in codes)
    assert ExitCode.PREEMPTED not in {0, 1, 2}


def test_value_of_the_stop_order_is_not_a_number() -> None:
    assert not contract.ATTEMPT_STOP.isdigit()
