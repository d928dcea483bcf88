"""The termination message: the agent's last word, within what the kubelet keeps."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_agent.main import leave_word
from ddp_wire.contract import TERMINATION_MESSAGE_BYTES, AgentPhase, AgentStatus, Failure, Progress
from tests.agent.support import beat

TEXT = st.text(max_size=200).map(lambda text: text * 20)


def status(**fields: Any) -> AgentStatus:
    given: dict[str, Any] = {
        "node_index": 1,
        "attempt": 2,
        "phase": AgentPhase.FAILED,
        "since": 5.0,
    }
    return AgentStatus(**(given | fields))


def word(home: Path, said: AgentStatus) -> AgentStatus:
    """What the operator reads of what was left."""
    path = home / "termination-log"
    leave_word(path, said)
    content = path.read_bytes()
    assert len(content) <= TERMINATION_MESSAGE_BYTES
    return AgentStatus.model_validate_json(content)


def test_a_short_word_is_left_whole_but_for_the_command(tmp_path: Path) -> None:
    failure = Failure(attempt=2, at=4.0, rank=3, exit_code=1, message="E: x", traceback="T\nE: x")
    said = status(failure=failure, progress=Progress(step=7), command=["torchrun"], ranks=[beat()])
    assert word(tmp_path, said) == said.model_copy(update={"command": []})


def test_of_the_ranks_the_first_is_left_which_tells_where_the_run_resumed(tmp_path: Path) -> None:
    ranks = [beat(local_rank=i, rank=i, resumed_from=9) for i in range(64)]
    assert word(tmp_path, status(ranks=ranks)).ranks == ranks[:1]


def test_a_long_traceback_keeps_its_end_and_the_message(tmp_path: Path) -> None:
    lines = "\n".join(f"line {i}" for i in range(450))
    failure = Failure(attempt=2, at=4.0, message="E: x" * 100, traceback=lines)
    left = word(tmp_path, status(failure=failure)).failure
    assert left is not None
    assert left.message == "E: x" * 100
    assert lines.endswith(left.traceback)
    assert len(left.traceback) > 2000


@given(message=TEXT, traceback=TEXT)
def test_any_failure_fits_and_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, message: str, traceback: str
) -> None:
    failure = Failure(attempt=2, at=4.0, message=message[:1024], traceback=traceback[-4096:])
    left = word(tmp_path_factory.mktemp("word"), status(failure=failure)).failure
    assert left is not None
    assert (left.attempt, left.at) == (2, 4.0)
    assert failure.message.startswith(left.message)
    assert failure.traceback.endswith(left.traceback)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("phase", [AgentPhase.SUCCEEDED, AgentPhase.FAILED])
def test_more_metrics_than_fit_are_left_out_and_the_rest_is_left(
    tmp_path: Path, phase: AgentPhase
) -> None:
    progress = Progress(step=7, metrics={f"validation/accuracy/{i:04d}": 0.5 for i in range(300)})
    failure = Failure(attempt=2, at=4.0, message="E: x") if phase is AgentPhase.FAILED else None
    said = status(phase=phase, failure=failure, progress=progress, ranks=[beat(progress=progress)])
    left = word(tmp_path, said)
    assert left.phase is phase
    assert left.failure == failure
    assert left.progress is not None
    assert left.progress.step == 7


def test_a_word_that_cannot_be_left_does_not_change_how_the_agent_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        leave_word(tmp_path / "missing" / "log", status())
    assert "could not be written" in caplog.text
