"""Leader election: there are never two leaders, and a new leader always follows."""

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


def test_first_candidate_becomes_leader_and_others_report_it() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            assert first.elector.leads
            assert first.elector.standby_readiness() is None
            assert second.elector.standby_readiness() == (True, "standing by: a holds the Lease")
            first.elector.check()
            with pytest.raises(NotLeadingError, match="the Lease is held by a"):
                second.elector.check()
            assert server.lease is not None
            assert server.lease["spec"]["leaseDurationSeconds"] == 15
            assert server.lease["spec"]["leaseTransitions"] == 0

    run_in_fake_time(body())


def test_leader_renews_with_one_request_and_keeps_leading() -> None:
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


def test_killed_leader_is_replaced_after_the_lease_expires() -> None:
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


def test_released_lease_is_acquired_at_the_next_read() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(7)
            first.stop.set()
            await first.task
            assert server.holder == ""
            assert not first.elector.leads
            released = now()
            assert await until_leads(second) - released <= STEP + 0.1

    run_in_fake_time(body())


def test_release_works_after_a_lost_renewal_response() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.response_delay = never
            await asyncio.sleep(RETRY + 1)
            leader.connection.response_delay = lambda: 0.0
            leader.stop.set()
            await leader.task
            assert server.holder == ""

    run_in_fake_time(body())


def test_ending_leader_does_not_release_the_lease_of_another() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            server.give_to("b")
            leader.stop.set()
            await leader.task
            assert server.holder == "b"

    run_in_fake_time(body())


def test_stopped_candidate_writes_nothing() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (_, second):
            second.stop.set()
            await second.task
            assert set(server.writers) == {"a"}

    run_in_fake_time(body())


@pytest.mark.parametrize("how", ["refused", "unanswered", "responses lost"])
def test_leader_that_cannot_renew_stops_in_time(how: str) -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a", "b") as (first, second):
            await asyncio.sleep(20)
            match how:
                case "refused":
                    first.connection.down = True
                case "unanswered":
                    first.connection.request_delay = never
                case _:
                    first.connection.response_delay = never
            cut_at = now()
            while first.elector.leads:
                assert not second.elector.leads
                await asyncio.sleep(0.01)
            assert now() - cut_at <= RENEW + 0.02
            await first.task
            assert first.ended_at is not None
            assert first.ended_at - cut_at <= RENEW + 0.02
            assert first.lost.startswith("the Lease was not renewed for 10 s")
            await until_leads(second)

    run_in_fake_time(body())


def test_short_outage_does_not_change_the_leader() -> None:
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


def test_leader_whose_lease_was_taken_ends_at_the_next_renewal() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            server.give_to("b")
            async with asyncio.timeout(2 * RETRY + 0.1):
                await leader.task
            assert leader.lost == "the Lease is held by b"
            assert server.writers[-1] == "b"

    run_in_fake_time(body())


def test_paused_leader_must_not_write_after_the_pause() -> None:
    """A leader notices the pause before it writes, whichever of its tasks runs first."""

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


def test_leadership_time_counts_from_before_the_request() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.response_delay = lambda: 4.0
            while leader.connection.requests[-1] != "update":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            sent = now()
            leader.connection.down = True
            await leader.task
            assert leader.ended_at is not None
            assert leader.ended_at - sent == pytest.approx(RENEW, abs=0.02)

    run_in_fake_time(body())


def test_response_after_a_pause_does_not_extend_the_leadership() -> None:
    async def body() -> None:
        server = LeaseServer()
        async with candidates(server, "a") as (leader,):
            leader.connection.response_delay = lambda: 1.0
            await asyncio.sleep(RETRY + 0.5)
            assert leader.connection.requests[-1] == "update"
            pause(LEASE + 1)
            await leader.task
            assert not leader.elector.leads
            assert leader.lost

    run_in_fake_time(body())


def test_candidate_ignores_the_renew_time_that_another_clock_wrote() -> None:
    async def body() -> None:
        server = LeaseServer()
        spec = {
            "holderIdentity": "old",
            "leaseDurationSeconds": 30,
            "renewTime": "1999-01-01T00:00:00.000000Z",
        }
        metadata = {"namespace": "ddp-system", "name": "ddp-trainer-operator"}
        server.put({"metadata": metadata, "spec": spec}, create=True)
        started = now()
        async with candidates(server, "a") as (candidate,):
            # The lease duration of the old holder is 30 s.
            assert 30 <= await until_leads(candidate) - started <= 30 + STEP + 0.1

    run_in_fake_time(body())


def test_deleted_lease_does_not_create_a_second_leader() -> None:
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


def test_candidate_is_not_ready_before_it_reads_the_lease() -> None:
    async def body() -> None:
        candidate = Candidate(LeaseServer(), "a")
        candidate.connection.down = True
        await asyncio.sleep(1)
        sentence = "the Lease has not been read yet: connection refused"
        assert candidate.elector.standby_readiness() == (False, sentence)
        candidate.connection.down = False
        await until_leads(candidate)
        await candidate.kill()

    run_in_fake_time(body())


def test_exactly_one_of_many_simultaneous_candidates_leads() -> None:
    async def body() -> None:
        server = LeaseServer()
        group = [Candidate(server, f"c{n}") for n in range(20)]
        for candidate in group:
            candidate.connection.request_delay = lambda: 0.1
        await asyncio.sleep(60)
        assert sum(c.elector.leads for c in group) == 1
        assert len(set(server.writers)) == 1
        for candidate in group:
            await candidate.kill()

    run_in_fake_time(body())


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40))]
)
def test_there_are_never_two_leaders(seed: int) -> None:
    """Delays, losses, outages, kills and stops never create a second leader."""
    run_in_fake_time(FaultyElection(seed).body())


class FaultyElection:
    def __init__(self, seed: int) -> None:
        self.rng, self.seed = random.Random(seed), seed  # noqa: S311
        self.names = itertools.count()
        self.server = LeaseServer()

    def new_candidate(self) -> Candidate:
        number = next(self.names)
        candidate = Candidate(self.server, f"c{number}")
        delays = flaky(self.seed * 1000 + number)
        candidate.connection.request_delay, candidate.connection.response_delay = delays
        return candidate

    async def inject_fault(self, victim: Candidate) -> None:
        match self.rng.choice(["outage", "kill", "stop"]):
            case "outage":
                victim.connection.down = not victim.connection.down
            case "kill":
                await victim.kill()
            case _:
                victim.stop.set()

    async def body(self) -> None:
        group = [self.new_candidate() for _ in range(3)]
        started, led = now(), 0
        while now() - started < 900:
            await asyncio.sleep(self.rng.uniform(0.01, 0.5))
            leaders = [c.elector._identity for c in group if c.elector.leads]
            assert len(leaders) <= 1, leaders
            led += len(leaders)
            if self.rng.random() < 0.02:
                await self.inject_fault(self.rng.choice(group))
            # An ended process is replaced by a new one with another identity.
            group = [self.new_candidate() if c.task.done() else c for c in group]
        assert led > 0
        await self.end_faults(group)

    async def end_faults(self, group: list[Candidate]) -> None:
        for candidate in group:
            candidate.connection.down = False
            candidate.connection.request_delay = candidate.connection.response_delay = lambda: 0.0
        group.append(Candidate(self.server, "last"))
        await asyncio.sleep(3 * LEASE)
        assert sum(c.elector.leads for c in group) == 1
        for candidate in group:
            await candidate.kill()
