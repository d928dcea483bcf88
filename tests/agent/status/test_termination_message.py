"""The termination message: the last agent status, within the kubelet's size limit."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_agent.status.termination import write_termination_message
from ddp_wire.contract import TERMINATION_MESSAGE_BYTES
from ddp_wire.messages import AgentPhase, AgentStatus, Failure, Progress
from tests.agent.support import heartbeat

TEXT = st.text(max_size=200).map(lambda text: text * 20)


def status(**fields: Any) -> AgentStatus:
    given: dict[str, Any] = {
        "node_index": 1,
        "attempt": 2,
        "phase": AgentPhase.FAILED,
        "since": 5.0,
    }
    return AgentStatus(**(given | fields))


def written(home: Path, status: AgentStatus) -> AgentStatus:
    """Write a termination message. Return the status that the operator reads from it."""
    path = home / "termination-log"
    write_termination_message(path, status)
    content = path.read_bytes()
    assert len(content) <= TERMINATION_MESSAGE_BYTES
    return AgentStatus.model_validate_json(content)


def test_short_status_is_written_whole_except_for_the_command(tmp_path: Path) -> None:
    failure = Failure(attempt=2, at=4.0, rank=3, exit_code=1, message="E: x", traceback="T\nE: x")
    given_status = status(
        failure=failure, progress=Progress(step=7), command=["torchrun"], ranks=[heartbeat()]
    )
    assert written(tmp_path, given_status) == given_status.model_copy(update={"command": []})


def test_termination_message_holds_only_the_first_of_many_ranks(tmp_path: Path) -> None:
    ranks = [heartbeat(local_rank=i, rank=i, resumed_from=9) for i in range(64)]
    assert written(tmp_path, status(ranks=ranks)).ranks == ranks[:1]


def test_long_traceback_keeps_its_end_and_the_message(tmp_path: Path) -> None:
    lines = "\n".join(f"line {i}" for i in range(450))
    failure = Failure(attempt=2, at=4.0, message="E: x" * 100, traceback=lines)
    found = written(tmp_path, status(failure=failure)).failure
    assert found is not None
    assert found.message == "E: x" * 100
    assert lines.endswith(found.traceback)
    assert len(found.traceback) > 2000


@given(message=TEXT, traceback=TEXT)
def test_any_failure_fits_into_the_termination_message_and_can_be_parsed(
    tmp_path_factory: pytest.TempPathFactory, message: str, traceback: str
) -> None:
    failure = Failure(attempt=2, at=4.0, message=message[:1024], traceback=traceback[-4096:])
    found = written(tmp_path_factory.mktemp("message"), status(failure=failure)).failure
    assert found is not None
    assert (found.attempt, found.at) == (2, 4.0)
    assert failure.message.startswith(found.message)
    assert failure.traceback.endswith(found.traceback)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("phase", [AgentPhase.SUCCEEDED, AgentPhase.FAILED])
def test_metrics_that_do_not_fit_are_omitted_and_the_rest_is_written(
    tmp_path: Path, phase: AgentPhase
) -> None:
    progress = Progress(step=7, metrics={f"validation/accuracy/{i:04d}": 0.5 for i in range(300)})
    failure = Failure(attempt=2, at=4.0, message="E: x") if phase is AgentPhase.FAILED else None
    given_status = status(
        phase=phase, failure=failure, progress=progress, ranks=[heartbeat(progress=progress)]
    )
    found = written(tmp_path, given_status)
    assert found.phase is phase
    assert found.failure == failure
    assert found.progress is not None
    assert found.progress.step == 7


def test_message_that_cannot_be_written_does_not_stop_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write_termination_message(tmp_path / "missing" / "log", status())
    assert "could not be written" in caplog.text
