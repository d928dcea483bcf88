"""torchrun's wrapper: which of the failed ranks of a node becomes the failure of the attempt."""

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_agent.launcher import torchrun
from ddp_agent.launcher.torchrun import first_failure
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import Failure


class Node:
    """Failed ranks of a node, with their logs and error files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.failed: dict[int, ProcessFailure] = {}

    def rank_failed(
        self, rank: int, code: int, *, at: int, log: str = "", recorded: str = ""
    ) -> None:
        path = self.home / "run" / "attempt_0" / str(rank) / "stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text(log)
        error_file = path.with_name("error.json")
        if recorded:
            extra = {"py_callstack": recorded, "timestamp": str(at)}
            error_file.write_text(json.dumps({"message": {"message": "E", "extraInfo": extra}}))
        failure = ProcessFailure(rank, 1, code, str(error_file))
        failure.timestamp = at
        self.failed[rank + 4] = failure

    def failure(self) -> Failure:
        return first_failure(ChildFailedError("train", self.failed), 2, self.home)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_earliest_failure_is_reported_with_its_global_rank(node: Node) -> None:
    node.rank_failed(0, 1, at=20, log="Traceback (most recent call last):\nE: late")
    node.rank_failed(1, 1, at=10, log="Traceback (most recent call last):\nE: early")
    found = node.failure()
    assert (found.rank, found.message, found.attempt) == (5, "E: early", 2)


def test_rank_that_lost_a_peer_is_not_reported(node: Node) -> None:
    node.rank_failed(0, 1, at=10, log="RuntimeError: Connection closed by peer")
    node.rank_failed(1, 1, at=20, log="E: the cause")
    assert node.failure().message == "E: the cause"


def test_ranks_that_torchrun_stopped_are_not_reported(node: Node) -> None:
    node.rank_failed(0, -signal.SIGTERM, at=10)
    node.rank_failed(1, -signal.SIGKILL, at=20)
    assert node.failure().signal == "SIGKILL"


def test_failure_is_secondary_if_all_ranks_lost_a_peer(node: Node) -> None:
    node.rank_failed(0, 1, at=10, log="RuntimeError: Connection closed by peer")
    assert node.failure().secondary


def test_recorded_traceback_takes_precedence_over_the_log(node: Node) -> None:
    node.rank_failed(0, 1, at=10, log="noise", recorded="Traceback\nValueError: no")
    found = node.failure()
    assert (found.message, found.traceback) == ("ValueError: no", "Traceback\nValueError: no")


@pytest.mark.parametrize("code", [ExitCode.BAD_INPUT, ExitCode.VOLUME_FAILED])
def test_reported_error_is_described_by_its_sentence_without_the_traceback(
    node: Node, code: ExitCode
) -> None:
    node.rank_failed(
        0,
        code,
        at=10,
        log="config.epochs: unknown",
        recorded="Traceback\nSystemExit: 2",
    )
    node.rank_failed(1, code, at=9)
    found = node.failure()
    assert (found.message, found.exit_code) == ("config.epochs: unknown", code)


def test_reason_in_one_line_is_reported_without_the_name_of_the_error(
    node: Node,
) -> None:
    sentence = "rank 4, update 9: waited 600.0 s in all_reduce, but rank 5 did not join"
    recorded = f"Traceback (most recent call last):\nflight.StalledError: {sentence}\n"
    node.rank_failed(0, 1, at=10, log=f"noise\n{sentence}\n", recorded=recorded)
    assert (node.failure().message, node.failure().secondary) == (sentence, False)


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (None, 0, None),
        (ValueError("no nodes"), 1, "torchrun: ValueError: no nodes"),
        (ConnectionError("Connection refused"), 1, "torchrun: ConnectionError: Connection refused"),
    ],
    ids=["success", "own failure", "peer lost"],
)
def test_failure_of_torchrun_itself_is_written_to_the_failure_file(
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
    monkeypatch.setattr(torchrun, "_launch_interpreters", run)
    monkeypatch.setenv(Env.ATTEMPT, "2")
    monkeypatch.setenv(FAILURE_FILE_ENV, str(file))
    assert torchrun.main([f"--log-dir={tmp_path}", "train.py"]) == code
    if message is None:
        assert not file.exists()
        return
    found = Failure.model_validate_json(file.read_bytes())
    assert (found.attempt, found.message) == (2, message)
    assert found.secondary is isinstance(outcome, ConnectionError)
