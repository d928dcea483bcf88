"""Tests that the agent detects ranks without progress and inspects them."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.hang_limits import HangLimits
from ddp_agent.status.hangs import (
    ANSWER_SECONDS,
    HangDetector,
    _with_few_stacks,
    describe_hang,
    p99_seconds,
    sentence,
)
from ddp_trainer.observe.inspector import answering
from ddp_wire.activity import Activity, ActivityWriter
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.messages import HungRank, LocalHeartbeat, RankInspection, RankPhase, RankTimes
from tests.agent.support import wait_until


class Node:
    """Directory of heartbeats of two ranks, whose agent's clock a test moves."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.folder, self.ahead = folder, 0.0
        self.records = [ActivityWriter(folder / f"{rank}.activity") for rank in (0, 1)]
        for rank in (0, 1):
            self.write(rank)
            self.records[rank].enter(Activity.BACKWARD)
        clock = Clock(monotonic=lambda: time.monotonic() + self.ahead)
        self.detector = HangDetector(HangLimits(**limits), folder, 1, clock)

    def write(
        self, rank: int, phase: RankPhase = RankPhase.TRAINING, *, updates: int = 100
    ) -> None:
        times = RankTimes(updates=[0, 0, updates, *([0] * 13)], update_seconds=0.4)
        heartbeat = LocalHeartbeat(
            attempt=1, rank=2 + rank, local_rank=rank, phase=phase, at=1.0, times=times
        )
        (self.folder / f"{rank}.json").write_text(heartbeat.to_json())

    def look_after(self, seconds: float) -> list[HungRank] | None:
        """Return the agent's findings after it has checked repeatedly for this many seconds."""
        for _ in range(int(seconds)):
            self.ahead += 1.0
            self.detector.look()
        return self.detector.look()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_agent_reports_ranks_without_progress_after_the_limit(node: Node) -> None:
    assert node.look_after(30) is None
    found = node.look_after(3 + ANSWER_SECONDS)
    assert found is not None
    assert [(one.rank, one.activity) for one in found] == [(2, "backward"), (3, "backward")]
    assert found[0].seconds >= 30
    assert found[0].inspection is None, "nobody answers here"


def test_agent_reports_no_hang_while_one_rank_is_within_its_limit(node: Node) -> None:
    node.records[1].enter(Activity.CHECKPOINT)
    assert node.look_after(1700) is None
    assert node.look_after(200) is not None


def test_second_update_of_an_attempt_may_take_as_long_as_a_start(node: Node) -> None:
    """No update was measured yet, so a slow update may be normal."""
    for rank in (0, 1):
        node.write(rank, updates=0)
    assert node.look_after(1700) is None
    assert node.look_after(200) is not None


def test_progress_clears_the_report_of_a_hang(node: Node) -> None:
    assert node.look_after(35) is not None
    node.records[0].step(8)
    node.records[1].step(8)
    node.ahead = 50.0
    for record in node.records:  # As if the update had ended at that time of the agent's clock.
        record._values[2] = time.monotonic() + node.ahead
    assert node.detector.look() is None


@pytest.mark.slow
def test_ranks_in_phase_done_do_not_count_as_hung(node: Node) -> None:
    for rank in (0, 1):
        node.write(rank, RankPhase.DONE)
    assert node.look_after(3600) is None


def test_hang_detection_can_be_switched_off(tmp_path: Path) -> None:
    assert Node(tmp_path, detect=False).look_after(3600) is None


def test_pause_of_the_whole_container_does_not_count_as_a_hang(node: Node) -> None:
    """The agent is paused with its ranks, for example while the machine migrates."""
    node.ahead += 3600.0
    assert node.detector.look() is None
    assert node.look_after(29) is None


@pytest.mark.parametrize(
    ("activity", "p99", "limit"),
    [
        (Activity.STARTING, 0.0, 1800),
        (Activity.DATA, 0.1, 30),
        (Activity.DATA, None, 1800),
        (Activity.HOOK, 0.1, 30),
        (Activity.FORWARD, 20.0, 60),
        (Activity.EXCHANGE, 0.0, 30),
        (Activity.EVALUATION, 20.0, 600),
        (Activity.CHECKPOINT, 0.0, 1800),
        (Activity.ENDING, 0.0, 1800),
    ],
)
def test_each_activity_has_its_own_hang_limit(
    activity: Activity, p99: float | None, limit: float
) -> None:
    assert HangLimits().of(activity, p99) == limit


@pytest.mark.parametrize(
    ("activity", "p99", "compiles", "limit"),
    [
        (Activity.DATA, 0.1, False, 300),
        (Activity.DATA, 200.0, False, 600),
        (Activity.DATA, None, False, 1800),
        (Activity.HOOK, 0.1, False, 600),
        (Activity.FORWARD, 0.1, False, 30),
        (Activity.FORWARD, 0.1, True, 1800),
        (Activity.BACKWARD, 0.1, False, 30),
        (Activity.EXCHANGE, 0.1, False, 30),
        (Activity.CHECKPOINT, 0.1, False, 1800),
    ],
)
def test_hang_limit_depends_on_the_activity_of_the_rank(
    activity: Activity, p99: float | None, compiles: bool, limit: float
) -> None:
    assert HangLimits().end(activity, p99, compiles=compiles) == limit


@pytest.mark.parametrize(
    ("activity", "limit"), [(Activity.DATA, 300), (Activity.HOOK, 600), (Activity.FORWARD, 30)]
)
def test_rank_is_a_suspect_before_its_limit_ends_the_attempt(
    node: Node, activity: Activity, limit: int
) -> None:
    node.records[1].enter(activity)
    found = node.look_after(33 + ANSWER_SECONDS) or []
    assert [(one.rank, one.overdue) for one in found] == [(2, True), (3, limit == 30)]
    found = node.look_after(limit + 2 * ANSWER_SECONDS) or []
    assert [(one.rank, one.overdue) for one in found] == [(2, True), (3, True)]
    assert found[1].seconds > limit, "the ranks were asked again"


def test_rank_that_compiles_has_the_hang_limit_of_a_start(node: Node) -> None:
    """A rank may compile in any update, for example for a last batch of another shape."""

    def answer() -> None:
        for rank in (0, 1):
            answer = RankInspection(waits=rank == 0, compiles=rank == 1).to_json()
            (node.folder / f"{rank}.inspection").write_text(answer)

    node.records[1].enter(Activity.FORWARD)
    node.look_after(31)
    answer()
    found = node.look_after(30) or []
    assert [(one.rank, one.overdue) for one in found] == [(2, True), (3, False)]
    assert node.look_after(1700) == found
    node.look_after(60)
    answer()
    found = node.look_after(ANSWER_SECONDS) or []
    assert [one.overdue for one in found] == [True, True]


def test_report_of_a_hang_holds_at_most_a_few_stacks() -> None:
    """The operator keeps the reports of all nodes of a large job."""
    inspections = [RankInspection(waits=rank % 2 == 0, stack="f") for rank in range(8)]
    found = [
        HungRank(rank=rank, step=1, activity="data", seconds=31.0, inspection=one)
        for rank, one in enumerate(inspections)
    ]
    kept = _with_few_stacks(found)
    assert [one.rank for one in kept if one.inspection and one.inspection.stack] == [1, 3]


def times_of(counts: dict[int, int], seconds: float = 1.0) -> LocalHeartbeat:
    updates = [counts.get(index, 0) for index in range(len(UPDATE_SECONDS_BUCKETS) + 1)]
    times = RankTimes(updates=updates, update_seconds=seconds)
    return LocalHeartbeat(
        attempt=1, rank=0, local_rank=0, phase=RankPhase.TRAINING, at=1.0, times=times
    )


@pytest.mark.parametrize(
    ("counts", "p99"),
    [({}, None), ({5: 2}, None), ({5: 100}, 0.05), ({5: 99, 8: 1}, 0.05), ({5: 98, 8: 2}, 0.5)],
)
def test_99th_percentile_is_the_bound_of_its_bucket(
    counts: dict[int, int], p99: float | None
) -> None:
    assert p99_seconds(times_of(counts)) == p99


def test_99th_percentile_of_very_long_updates_is_at_most_their_total() -> None:
    assert p99_seconds(times_of({15: 4}, seconds=400.0)) == 400.0


@pytest.fixture
def _sleeping_rank(tmp_path: Path) -> Iterator[None]:
    """Start a thread that plays the training thread of local rank 0."""
    end, ready = threading.Event(), threading.Event()

    def train() -> None:
        with answering(tmp_path, 0):
            ready.set()
            wait_in_user_code(end)

    thread = threading.Thread(target=train)
    thread.start()
    assert ready.wait(10)
    yield
    end.set()
    thread.join()


def wait_in_user_code(end: threading.Event) -> None:
    end.wait()


@pytest.mark.usefixtures("_sleeping_rank")
def test_rank_that_answers_an_inspection_shows_its_stack(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.look_after(31) is None, "the agent has only asked yet"
    found: list[HungRank] = []
    wait_until((tmp_path / "0.inspection").exists, "the answer of rank 0")
    node.ahead += ANSWER_SECONDS + 1.0
    found = node.detector.look() or []
    assert found[0].inspection is not None
    assert "wait_in_user_code" in found[0].inspection.stack
    assert not found[0].inspection.waits
    assert found[1].inspection is None


def hung(rank: int, *, waits: bool | None = None, **fields: object) -> HungRank:
    inspection = None
    if waits is not None:
        stack = f'File "/x/f{rank}.py", line 3, in f\n    g()\n'
        inspection = RankInspection(
            waits=waits, stack=stack, number=7, collectives=["all_reduce of [8]"]
        )
    given = {"rank": rank, "step": 4, "activity": "forward", "seconds": 31.0}
    return HungRank(**(given | fields), inspection=inspection)


def test_message_of_a_hang_names_what_the_rank_does() -> None:
    start = "rank 1 has made no progress for 31 s, in forward: "
    assert sentence(hung(1)) == f"{start}it does not answer"
    assert sentence(hung(1, waits=True)) == f"{start}it waits in all_reduce of [8] (number 7)"
    assert sentence(hung(1, waits=False)) == f'{start}File "/x/f1.py", line 3, in f g()'
    assert sentence(hung(1, blocked="it is stopped")) == f"{start}it is stopped"


def test_node_whose_ranks_all_wait_is_not_the_root_cause() -> None:
    waiting = describe_hang([hung(0, waits=True), hung(1, waits=True)], 3, 5.0)
    assert (waiting.rank, waiting.secondary) == (0, True)
    guilty = describe_hang([hung(0, waits=True), hung(1, waits=False)], 3, 5.0)
    assert (guilty.rank, guilty.secondary, guilty.attempt) == (1, False, 3)
    assert "f1.py" in guilty.traceback
