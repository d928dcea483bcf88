"""Leader election: never two at a time, and always one again."""

import asyncio
import itertools
import random

import pytest

from ddp_operator.cluster.base import NotLeadingError
from tests.operator.fake_leases import LeaseServer, flaky, never
from tests.operator.fake_time import run_in_fake_time
from tests.operator.leader_support import (
    LEASE,
    RENEW,
    RETRY,
    STEP,
    Candidate,
    candidates,
    now,
    pause,
    until_leads,
)


def test_the_first_one_leads_and_the_others_say_who_does() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            assert first.elector.leads
            assert first.elector.standing_by() is None
            assert second.elector.standing_by() == (True, "standing by: a leads")
            first.elector.check()
            with pytest.raises(NotLeadingError, match="the Lease is held by a"):
                second.elector.check()
            assert server.lease is not None
            assert server.lease["spec"]["leaseDurationSeconds"] == 15
            assert server.lease["spec"]["leaseTransitions"] == 0

    run_in_fake_time(body())


def test_a_leader_renews_by_one_request_and_keeps_leading() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(3600)
            assert first.elector.leads
            assert not second.elector.leads
            assert set(server.writers) == {"a"}
            assert set(first.connection.requests[2:]) == {"update"}
            assert len(first.connection.requests) <= 3600 / RETRY + 2
            assert set(second.connection.requests) == {"get"}

    run_in_fake_time(body())


def test_a_killed_leader_is_followed_after_the_lease_has_run_out() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(7)
            await first.kill()
            killed = now()
            waited = await until_leads(second) - killed
            assert LEASE - STEP <= waited <= LEASE + 2 * STEP
            assert server.lease is not None
            assert server.lease["spec"]["leaseTransitions"] == 1

    run_in_fake_time(body())


def test_a_released_lease_is_taken_at_the_next_look() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(7)
            first.stop.set()
            await first.task
            assert server.holder == ""
            assert not first.elector.leads
            asked = now()
            assert await until_leads(second) - asked <= STEP + 0.1

    run_in_fake_time(body())


def test_a_release_works_after_the_answer_to_a_renewal_was_lost() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.back = never
            await asyncio.sleep(RETRY + 1)
            leader.connection.back = lambda: 0.0
            leader.stop.set()
            await leader.task
            assert server.holder == ""

    run_in_fake_time(body())


def test_a_leader_that_ends_does_not_release_what_another_one_holds() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            server.give_to("b")
            leader.stop.set()
            await leader.task
            assert server.holder == "b"

    run_in_fake_time(body())


def test_a_candidate_that_is_told_to_stop_ends_and_writes_nothing() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (_, second):
            second.stop.set()
            await second.task
            assert set(server.writers) == {"a"}

    run_in_fake_time(body())


@pytest.mark.parametrize("how", ["refused", "unanswered", "answers lost"])
def test_a_leader_that_cannot_renew_stops_in_time(how: str) -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(20)
            match how:
                case "refused":
                    first.connection.down = True
                case "unanswered":
                    first.connection.there = never
                case _:
                    first.connection.back = never
            cut = now()
            while first.elector.leads:
                assert not second.elector.leads
                await asyncio.sleep(0.01)
            assert now() - cut <= RENEW + 0.02
            await first.task
            assert first.ended_at is not None
            assert first.ended_at - cut <= RENEW + 0.02
            assert first.lost.startswith("the Lease was not renewed for 10 s")
            await until_leads(second)

    run_in_fake_time(body())


def test_a_short_outage_changes_nothing() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            for each in (first, second):
                each.connection.down = True
            await asyncio.sleep(RENEW - 2 * RETRY)
            for each in (first, second):
                each.connection.down = False
            await asyncio.sleep(60)
            assert first.elector.leads
            assert set(server.writers) == {"a"}

    run_in_fake_time(body())


def test_a_leader_whose_lease_was_taken_ends_at_its_next_renewal() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            server.give_to("b")
            async with asyncio.timeout(2 * RETRY + 0.1):
                await leader.task
            assert leader.lost == "the Lease is held by b"
            assert server.writers[-1] == "b"

    run_in_fake_time(body())


def test_a_paused_leader_may_not_write_when_it_comes_back() -> None:
    """Whatever of it runs first: it finds out before it writes."""

    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.elector.check()
            pause(LEASE + 1)
            server.give_to("b")
            with pytest.raises(NotLeadingError, match="was not renewed for 10 s"):
                leader.elector.check()
            await leader.task
            assert leader.lost
            assert server.writers[-1] == "b"
            assert leader.connection.requests.count("update") == 0

    run_in_fake_time(body())


def test_the_time_of_a_leader_counts_from_before_its_request_was_sent() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.back = lambda: 4.0
            while leader.connection.requests[-1] != "update":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            sent = now()
            leader.connection.down = True
            await leader.task
            assert leader.ended_at is not None
            assert leader.ended_at - sent == pytest.approx(RENEW, abs=0.02)

    run_in_fake_time(body())


def test_an_answer_that_comes_after_a_pause_does_not_make_a_leader() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.back = lambda: 1.0
            await asyncio.sleep(RETRY + 0.5)
            assert leader.connection.requests[-1] == "update"
            pause(LEASE + 1)
            await leader.task
            assert not leader.elector.leads
            assert leader.lost

    run_in_fake_time(body())


def test_a_candidate_counts_from_what_it_saw_and_not_from_a_written_time() -> None:
    async def body() -> None:
        server = LeaseServer()
        spec = {
            "holderIdentity": "old",
            "leaseDurationSeconds": 30,
            "renewTime": "1999-01-01T00:00:00.000000Z",
        }
        metadata = {"namespace": "ddp-system", "name": "ddp-trainer-operator"}
        server.put({"metadata": metadata, "spec": spec}, create=True)
        begun = now()
        async with candidates(server, "a") as (candidate,):
            # 30 s: the time that the holder asked for.
            assert 30 <= await until_leads(candidate) - begun <= 30 + STEP + 0.1

    run_in_fake_time(body())


def test_a_deleted_lease_makes_no_second_leader() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(7)
            server.lease = None
            for _ in range(600):
                assert not second.elector.leads
                await asyncio.sleep(0.1)
            assert first.elector.leads
            assert server.holder == "a"

    run_in_fake_time(body())


def test_a_candidate_is_not_ready_before_it_has_read_the_lease() -> None:
    async def body() -> None:
        candidate = Candidate(LeaseServer(), "a")
        candidate.connection.down = True
        await asyncio.sleep(1)
        sentence = "the Lease has not been read yet: connection refused"
        assert candidate.elector.standing_by() == (False, sentence)
        candidate.connection.down = False
        await until_leads(candidate)
        await candidate.kill()

    run_in_fake_time(body())


def test_of_many_that_begin_at_once_one_leads() -> None:
    async def body() -> None:
        server = LeaseServer()
        crowd = [Candidate(server, f"c{n}") for n in range(20)]
        for candidate in crowd:
            candidate.connection.there = lambda: 0.1
        await asyncio.sleep(60)
        assert sum(c.elector.leads for c in crowd) == 1
        assert len(set(server.writers)) == 1
        for candidate in crowd:
            await candidate.kill()

    run_in_fake_time(body())


@pytest.mark.parametrize("seed", range(40))
def test_there_are_never_two_leaders(seed: int) -> None:
    """Slow and lost words, outages, kills and stops, and somebody leads in the end."""
    run_in_fake_time(Ordeal(seed).body())


class Ordeal:
    def __init__(self, seed: int) -> None:
        self.dice, self.seed = random.Random(seed), seed  # noqa: S311
        self.names = itertools.count()
        self.server = LeaseServer()

    def newcomer(self) -> Candidate:
        number = next(self.names)
        candidate = Candidate(self.server, f"c{number}")
        candidate.connection.there, candidate.connection.back = flaky(self.seed * 1000 + number)
        return candidate

    async def harm(self, victim: Candidate) -> None:
        match self.dice.choice(["outage", "kill", "stop"]):
            case "outage":
                victim.connection.down = not victim.connection.down
            case "kill":
                await victim.kill()
            case _:
                victim.stop.set()

    async def body(self) -> None:
        crowd = [self.newcomer() for _ in range(3)]
        begun, led = now(), 0
        while now() - begun < 900:
            await asyncio.sleep(self.dice.uniform(0.01, 0.5))
            leaders = [c.elector._identity for c in crowd if c.elector.leads]
            assert len(leaders) <= 1, leaders
            led += len(leaders)
            if self.dice.random() < 0.02:
                await self.harm(self.dice.choice(crowd))
            # A process that has ended is started again under another name.
            crowd = [self.newcomer() if c.task.done() else c for c in crowd]
        assert led > 0
        await self.heal(crowd)

    async def heal(self, crowd: list[Candidate]) -> None:
        for candidate in crowd:
            candidate.connection.down = False
            candidate.connection.there = candidate.connection.back = lambda: 0.0
        crowd.append(Candidate(self.server, "last"))
        await asyncio.sleep(3 * LEASE)
        assert sum(c.elector.leads for c in crowd) == 1
        for candidate in crowd:
            await candidate.kill()
