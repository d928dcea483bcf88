"""Tests of the rank that the operator names when an attempt makes no progress."""

from collections.abc import Mapping
from typing import Any

import pytest

from ddp_operator.api.status import Cause, CheckpointStatus
from ddp_operator.reconcile.hangs import GATHER_WAIT, judge
from ddp_operator.reconcile.plan import Plan, SetAttempt
from ddp_wire.messages import AgentStatus, HungRank, RankInspection
from tests.agent.support import heartbeat
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    failed_status,
    only,
    plan_for,
    summary,
)

CALL = 'File "/usr/lib/python3.11/pathlib.py", line 1045, in open\n    return io.open(self)\n'
LOOP = 'File "/app/task.py", line 9, in loss\n    while True: pass\n'
BUCKETS = ["all_reduce of [20]", "all_reduce of [30]"]


def waiting(rank: int, number: int = 12, *, last: str = BUCKETS[1], **fields: Any) -> HungRank:
    """Return a rank that waits in a collective, as its stack and torch's record show."""
    inspection = RankInspection(
        waits=True, number=number, collectives=[BUCKETS[0], last], stack="File torch"
    )
    return hung(rank, inspection=inspection, activity="backward", **fields)


def busy(rank: int, number: int | None = 10, **fields: Any) -> HungRank:
    """Return a rank that loops in code of the user and has begun fewer collectives."""
    collectives = [BUCKETS[0], BUCKETS[1]] if number else []
    inspection = RankInspection(waits=False, number=number, collectives=collectives, stack=LOOP)
    return hung(rank, inspection=inspection, **fields)


def hung(rank: int, **fields: Any) -> HungRank:
    given: dict[str, Any] = {"rank": rank, "step": 40, "activity": "forward", "seconds": 31.0}
    return HungRank(**(given | fields))


def verdict(*found: HungRank, silent: frozenset[int] = frozenset()) -> tuple[list[int], str]:
    result = judge({one.rank: one for one in found}, silent)
    return sorted(result.ranks), result.how


def test_hung_rank_is_named_by_both_the_collectives_and_the_stacks() -> None:
    both = "shown by both the record of the collectives and the stacks"
    assert verdict(waiting(0), busy(1), waiting(2), waiting(3)) == ([1], both)


def test_rank_that_left_out_a_collective_is_named() -> None:
    """The rank waits in a later collective, so its stack shows nothing unusual."""
    odd = waiting(2, last="broadcast of [1]")
    assert verdict(waiting(0), waiting(1), odd, waiting(3))[0] == [2]


def test_rank_that_skipped_a_collective_and_is_ahead_is_named() -> None:
    ahead = waiting(1, 13, last="all_reduce of [7]")
    assert verdict(waiting(0), ahead, waiting(2)) == (
        [1],
        "shown by the record of the collectives alone",
    )


def test_rank_whose_process_does_not_answer_is_named() -> None:
    assert verdict(waiting(0), hung(1), waiting(2))[0] == [1]


def test_stopped_rank_that_waits_in_a_collective_is_named() -> None:
    """The rank has begun the same collective as the others, but the kernel does not run it."""
    stopped = waiting(1, blocked="its process 7 is stopped by a signal")
    assert verdict(waiting(0), stopped, waiting(2)) == ([1], "shown by the stacks alone")


def test_rank_without_a_record_of_collectives_is_named() -> None:
    found = verdict(waiting(0, 0), busy(1, None), waiting(2, 0))
    assert found[0] == [1]


def test_stacks_name_the_rank_if_no_rank_has_a_record() -> None:
    idle = RankInspection(waits=True)
    assert verdict(hung(0, inspection=idle), busy(1, None)) == ([1], "shown by the stacks alone")


def test_all_ranks_are_named_if_no_process_answers() -> None:
    assert verdict(hung(0), hung(1)) == ([0, 1], "shown by the stacks alone")


def test_message_says_that_the_collectives_and_the_stacks_name_different_ranks() -> None:
    ranks, how = verdict(waiting(0, 11), waiting(1), busy(2, 12))
    assert ranks == [2]
    assert how == "shown by the stacks; the record of the collectives names rank 0 instead"


def test_ranks_of_a_silent_agent_are_named() -> None:
    assert verdict(waiting(0), waiting(1), silent=frozenset({2, 3}))[0] == [2, 3]


def test_no_rank_is_named_if_all_ranks_wait_in_the_same_collective() -> None:
    assert verdict(waiting(0), waiting(1)) == ([], "")


def test_no_rank_is_named_if_two_halves_wait_in_different_collectives() -> None:
    assert verdict(waiting(0), waiting(1, last="broadcast of [1]"))[0] == []


def reporting(*ranks: HungRank, index: int = 0, **fields: Any) -> AgentStatus:
    return agent_status(index, hang=list(ranks), **fields)


def plan(statuses: Mapping[int, AgentStatus], **more: Any) -> Plan:
    claim = {"claimName": "shared"}
    job = active_job(status=more.pop("status", None), procsPerNode=2, checkpoint=claim)
    return plan_for(job, all_pods(job), statuses=statuses, **more)


HANG = {0: reporting(waiting(0), waiting(1)), 1: reporting(busy(2), waiting(3), index=1)}


def test_operator_ends_a_hung_attempt_and_names_the_rank() -> None:
    ended = plan(HANG)
    failure = ended.status.last_failure
    assert ended.status.attempt == 2
    assert failure is not None
    assert (failure.reason, failure.rank, failure.pod) == ("Hung", 2, "digits-1")
    assert (failure.node, failure.cause) == ("machine-1", Cause.APPLICATION)
    assert failure.message == (
        "rank 2 on digits-1 made no progress for 31 s in forward of update 41:"
        ' File "/app/task.py", line 9, in loss while True: pass'
        " (shown by both the record of the collectives and the stacks)"
    )
    assert failure.traceback == LOOP
    assert failure.time == after(-31)
    assert [event.reason for event in ended.events] == ["Restarting"]
    assert {action.value for action in only(ended.actions, SetAttempt)} == {"2"}


def slow(activity: str = "hook", **fields: Any) -> dict[int, AgentStatus]:
    """Return the reports of all ranks while they wait for rank 2, which is within its limit."""
    one = busy(2, activity=activity, overdue=False, **fields)
    return HANG | {1: reporting(one, waiting(3), index=1)}


@pytest.mark.parametrize("activity", ["data", "hook", "forward"])
def test_rank_within_its_limit_is_a_suspect_and_the_attempt_goes_on(activity: str) -> None:
    running = plan(slow(activity))
    assert running.status.attempt == 1
    found = running.status.suspect
    assert found is not None
    assert (found.rank, found.pod, found.node) == (2, "digits-1", "machine-1")
    assert (found.activity, found.step, found.since) == (activity, 40, after(-31))
    (event,) = running.events
    assert (event.type, event.reason) == ("Warning", "NoProgress")
    assert event.message.startswith(
        f"rank 2 on digits-1 made no progress for 31 s in {activity} of update 41: File"
    )
    assert event.message.endswith("; it may only be slow")
    shown = summary(running.status)[2]
    assert "; no update has ended since 11:59:29 UTC: rank 2 on digits-1 made no" in shown
    assert running.status.next_action is not None
    assert running.status.next_action.startswith("none: the operator waits until an update ends")


def test_suspect_is_named_once_and_released_with_the_next_update() -> None:
    first = plan(slow()).status.suspect
    again = plan(slow(seconds=45.0), status={"suspect": first}, now=after(14))
    assert again.status.suspect == first
    assert again.events == ()
    assert plan({0: agent_status(0)}, status={"suspect": first}).status.suspect is None


def test_suspect_waits_for_the_reports_of_all_nodes() -> None:
    """A silent node may be the node that the others wait for."""
    assert plan({1: slow()[1]}, undecided=1.0).status.suspect is None


def test_suspect_that_exceeds_its_limit_ends_the_attempt() -> None:
    first = plan(slow()).status.suspect
    ended = plan(HANG, status={"suspect": first}).status
    assert ended.last_failure is not None
    assert (ended.attempt, ended.last_failure.rank, ended.suspect) == (2, 2, None)


@pytest.mark.parametrize(("seconds", "named"), [(59.0, False), (61.0, True)])
def test_long_save_is_named_in_the_message_only(seconds: float, named: bool) -> None:
    """A save may take long, for example to a frozen volume."""
    saving = heartbeat(rank=0, step=80, activity="checkpoint", idle_seconds=seconds)
    running = plan({0: agent_status(0, ranks=[saving]), 1: agent_status(1)})
    sentence = (
        "; no update has ended since 11:58:59 UTC: rank 0 on digits-0 makes no progress in"
        " checkpoint of update 81"
    )
    assert (sentence in summary(running.status)[2]) == named
    assert running.events == ()
    assert running.status.attempt == 1


def test_message_names_the_code_of_the_user_that_called_a_library() -> None:
    inspection = RankInspection(waits=False, number=10, stack=LOOP + CALL)
    read = hung(2, inspection=inspection)
    failure = plan(HANG | {1: reporting(read, waiting(3), index=1)}).status.last_failure
    assert failure is not None
    assert 'update 41: File "/app/task.py", line 9, in loss while True: pass (' in failure.message
    assert failure.traceback == LOOP + CALL


def test_process_that_the_kernel_does_not_run_is_an_infrastructure_fault() -> None:
    stopped = hung(2, blocked="its process 7 is stopped by a signal")
    failure = plan(HANG | {1: reporting(stopped, waiting(3), index=1)}).status.last_failure
    assert failure is not None
    assert failure.cause is Cause.INFRASTRUCTURE
    assert "forward of update 41: its process 7 is stopped by a signal" in failure.message


def test_network_is_suspected_if_all_ranks_wait_for_each_other() -> None:
    every = {0: reporting(waiting(0), waiting(1)), 1: reporting(waiting(2), waiting(3), index=1)}
    failure = plan(every).status.last_failure
    assert failure is not None
    assert failure.rank is None
    assert failure.message.startswith(
        "no rank made progress for 31 s: all ranks wait in all_reduce of [30] (number 12)"
    )


def test_node_within_its_limits_keeps_the_attempt_running() -> None:
    """Node 0 may be in a long save, for which the other nodes wait."""
    running = plan({0: agent_status(0), 1: HANG[1]}, undecided=60.0)
    assert running.status.attempt == 1
    assert not running.undecided


def test_operator_waits_for_the_report_of_a_silent_node() -> None:
    waits = plan({1: HANG[1]}, undecided=1.0)
    assert waits.undecided
    assert waits.status.attempt == 1
    ended = plan({1: HANG[1]}, undecided=GATHER_WAIT.total_seconds()).status.last_failure
    assert ended is not None
    assert ended.rank == 0
    assert "ranks 0, 1 and others" not in ended.message
    assert ended.message.startswith("ranks 0, 1, 2 on digits-0")


def test_crash_of_one_rank_is_the_cause_and_not_the_hang_of_the_others() -> None:
    ended = plan(HANG | {0: failed_status(0, message="ValueError: no")}).status.last_failure
    assert ended is not None
    assert ended.reason == "RankFailed"


def test_report_of_an_earlier_attempt_does_not_count() -> None:
    old = {i: one.model_copy(update={"attempt": 0}) for i, one in HANG.items()}
    assert plan(old).status.attempt == 1


def test_agent_can_report_only_its_own_ranks_as_hung() -> None:
    foreign = {0: reporting(waiting(0), busy(3)), 1: HANG[1]}
    failure = plan(foreign).status.last_failure
    assert failure is not None
    assert failure.rank == 1, "it left out its own rank, and its word about rank 3 is ignored"


@pytest.mark.parametrize("saved", [False, True])
def test_kubernetes_node_of_the_hung_rank_gets_a_strike(saved: bool) -> None:
    checkpoint = CheckpointStatus(step=30, path="/c", time=after(-5))
    status = {"last_checkpoint": checkpoint, "attempt_start_step": 10 if saved else 30}
    ended = plan(HANG, status=status).status
    assert [(one.node, one.count) for one in ended.strikes] == [("machine-1", 1)]
    assert ended.stalled_attempts == (0 if saved else 1)
