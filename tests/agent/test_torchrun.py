"""torchrun's wrapper: of the ranks that fell on a node, which one speaks for the failure."""

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ddp_agent import torchrun
from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_agent.torchrun import first_failure
from ddp_wire.contract import Env, ExitCode, Failure


class Node:
    """Fallen ranks of a node, and what they left."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.fallen: dict[int, ProcessFailure] = {}

    def fell(self, rank: int, code: int, *, at: int, log: str = "", recorded: str = "") -> None:
        path = self.home / "run" / "attempt_0" / str(rank) / "stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text(log)
        error_file = path.with_name("error.json")
        if recorded:
            extra = {"py_callstack": recorded, "timestamp": str(at)}
            error_file.write_text(json.dumps({"message": {"message": "E", "extraInfo": extra}}))
        failure = ProcessFailure(rank, 1, code, str(error_file))
        failure.timestamp = at
        self.fallen[rank + 4] = failure

    def failure(self) -> Failure:
        return first_failure(ChildFailedError("train", self.fallen), 2, self.home)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_first_by_time_speaks_with_its_global_rank(node: Node) -> None:
    node.fell(0, 1, at=20, log="Traceback (most recent call last):\nE: late")
    node.fell(1, 1, at=10, log="Traceback (most recent call last):\nE: early")
    found = node.failure()
    assert (found.rank, found.message, found.attempt) == (5, "E: early", 2)


def test_a_rank_that_fell_because_its_peer_had_gone_speaks_for_nobody(node: Node) -> None:
    node.fell(0, 1, at=10, log="RuntimeError: Connection closed by peer")
    node.fell(1, 1, at=20, log="E: the cause")
    assert node.failure().message == "E: the cause"


def test_ranks_that_torchrun_told_to_go_speak_for_nobody(node: Node) -> None:
    node.fell(0, -signal.SIGTERM, at=10)
    node.fell(1, -signal.SIGKILL, at=20)
    assert node.failure().signal == "SIGKILL"


def test_when_all_fell_because_a_peer_had_gone_the_failure_says_so(node: Node) -> None:
    node.fell(0, 1, at=10, log="RuntimeError: Connection closed by peer")
    assert node.failure().secondary


def test_the_recorded_traceback_is_preferred_to_the_log(node: Node) -> None:
    node.fell(0, 1, at=10, log="noise", recorded="Traceback\nValueError: no")
    found = node.failure()
    assert (found.message, found.traceback) == ("ValueError: no", "Traceback\nValueError: no")


def test_of_refused_input_the_sentence_is_told_and_not_the_traceback_of_saying_it(
    node: Node,
) -> None:
    node.fell(
        0,
        ExitCode.BAD_INPUT,
        at=10,
        log="config.epochs: unknown",
        recorded="Traceback\nSystemExit: 2",
    )
    node.fell(1, ExitCode.BAD_INPUT, at=9)
    found = node.failure()
    assert (found.message, found.exit_code) == ("config.epochs: unknown", ExitCode.BAD_INPUT)


def test_a_rank_that_says_why_in_one_line_is_quoted_without_the_name_of_the_error(
    node: Node,
) -> None:
    sentence = "rank 4, update 9: waited 600.0 s in all_reduce, but rank 5 did not come"
    recorded = f"Traceback (most recent call last):\nflight.StalledError: {sentence}\n"
    node.fell(0, 1, at=10, log=f"noise\n{sentence}\n", recorded=recorded)
    assert (node.failure().message, node.failure().secondary) == (sentence, False)


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (None, 0, None),
        (ValueError("no nodes"), 1, "torchrun: ValueError: no nodes"),
        (ConnectionError("Connection refused"), 1, "torchrun: ConnectionError: Connection refused"),
    ],
    ids=["success", "a failure of its own", "no peer"],
)
def test_what_torchrun_dies_of_is_written_down_for_the_agent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Exception | None,
    code: int,
    message: str | None,
) -> None:
    def run(_: object) -> None:
        if outcome is not None:
            raise outcome

    file = tmp_path / "failure.json"
    monkeypatch.setattr(torchrun, "run", run)
    monkeypatch.setenv(Env.ATTEMPT, "2")
    monkeypatch.setenv(FAILURE_FILE_ENV, str(file))
    assert torchrun.main([f"--log-dir={tmp_path}", "train.py"]) == code
    if message is None:
        assert not file.exists()
        return
    found = Failure.model_validate_json(file.read_bytes())
    assert (found.attempt, found.message) == (2, message)
    assert found.secondary is isinstance(outcome, ConnectionError)
