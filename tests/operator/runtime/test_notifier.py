"""The queue of notifications: retries, limits, and that it never delays a reconcile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.cluster.webhook import DeliveryAnswer, DeliveryOutcome
from ddp_operator.limits import NOTIFICATION_SECONDS
from ddp_operator.reconcile.notifications import find_notifications
from ddp_operator.runtime import notifier as module
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.notifier import Notifier
from tests.operator.runtime.test_controller import Bench
from tests.operator.simulation import Simulation
from tests.operator.support import NOW, finished_job
from tests.scenarios.flows import FLOWS
from tests.scenarios.pods import ended_status

OK = DeliveryAnswer(DeliveryOutcome.DELIVERED, "the receiver answered 204")
AWAY = DeliveryAnswer(DeliveryOutcome.TRANSIENT, "no answer in time")
NO = DeliveryAnswer(DeliveryOutcome.REFUSED, "the receiver answered 404")


class Stage:
    """Notifier with a scripted receiver and a clock that only its waits move."""

    def __init__(self, *answers: DeliveryAnswer) -> None:
        self.now: datetime = NOW
        self.answers, self.sent = list(answers), list[tuple[str, int, bytes]]()
        self.results, self.waits = list[str](), list[float]()
        self.closed = False
        self.blocked = asyncio.Event()
        self.blocked.set()
        self.notifier = Notifier(self, lambda: self.now, self.results.append, self._sleep)

    async def send(self, message_id: str, timestamp: int, body: bytes) -> DeliveryAnswer:
        await self.blocked.wait()
        self.sent.append((message_id, timestamp, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def close(self) -> None:
        self.closed = True

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += timedelta(seconds=seconds)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.notifier.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert self.closed

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)


def ended_job(name: str = "digits") -> DDPJob:
    job = finished_job(succeeded=True)
    changed = job.metadata.model_copy(update={"name": name, "uid": f"uid-{name}"})
    return job.model_copy(update={"metadata": changed})


async def test_notification_is_sent_once_however_often_the_job_is_observed() -> None:
    stage = Stage(OK)
    async with stage.running():
        for _ in range(3):
            stage.notifier.observe(ended_job())
        await stage.until(lambda: len(stage.results) == 1)
        stage.notifier.observe(ended_job("other"))
        await stage.until(lambda: len(stage.results) == 2)
    assert len({message_id for message_id, _, _ in stage.sent}) == len(stage.sent) == 2
    assert stage.results == ["delivered"] * 2


async def test_delivery_is_tried_again_with_the_same_id_and_a_new_time() -> None:
    stage = Stage(AWAY, AWAY, OK)
    async with stage.running():
        stage.notifier.observe(ended_job())
        await stage.until(lambda: len(stage.results) == 1)
    assert stage.waits == [1.0, 2.0]
    assert len({message_id for message_id, _, _ in stage.sent}) == 1
    start = int(NOW.timestamp())
    assert [timestamp for _, timestamp, _ in stage.sent] == [start, start + 1, start + 3]
    assert stage.results == ["delivered"]


async def test_refused_notification_is_not_tried_again() -> None:
    stage = Stage(NO)
    async with stage.running():
        stage.notifier.observe(ended_job())
        await stage.until(lambda: len(stage.results) == 1)
    assert (len(stage.sent), stage.results) == (1, ["failed"])


async def test_notification_for_an_absent_receiver_is_given_up_in_time() -> None:
    stage = Stage(AWAY)
    async with stage.running():
        stage.notifier.observe(ended_job())
        await stage.until(lambda: len(stage.results) == 1)
    assert stage.results == ["failed"]
    assert max(stage.waits) == 60.0
    assert NOTIFICATION_SECONDS - 60 < sum(stage.waits) <= NOTIFICATION_SECONDS


async def test_full_queue_drops_the_newest_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTIFICATION_QUEUE", 2)
    stage = Stage(OK)
    for name in ("a", "b", "c"):
        stage.notifier.observe(ended_job(name))
    assert stage.results == ["dropped"]
    async with stage.running():
        await stage.until(lambda: len(stage.results) == 3)
    assert [b'"name":"c"' in body for _, _, body in stage.sent] == [False, False]


async def test_memory_of_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTIFICATION_MEMORY", 2)
    stage = Stage(OK)
    async with stage.running():
        for name in ("a", "b", "c", "a"):
            stage.notifier.observe(ended_job(name))
        await stage.until(lambda: len(stage.results) == 4)
    assert len({message_id for message_id, _, _ in stage.sent}) == 3


def controller_of(bench: Bench, stage: Stage) -> Controller:
    """Return a controller that announces what it reads and writes."""
    return Controller(
        bench.cluster,
        bench.cache,
        bench.defaults,
        lambda: bench.now,
        agents=bench.agents,
        observe=stage.notifier.observe,
    )


async def test_reconcile_does_not_wait_for_a_receiver_that_hangs() -> None:
    bench, stage = Bench(nodes=1), Stage(OK)
    stage.blocked.clear()
    bench.controller = controller_of(bench, stage)
    async with stage.running():
        await bench.train()
        pod = bench.cluster.pods()[0]["metadata"]["name"]
        bench.cluster.change_pod(pod, **ended_status(0, None))
        await bench.reconcile_until_idle()
        assert bench.status().completion_time is not None
        assert stage.sent == []
        stage.blocked.set()
        await stage.until(lambda: len(stage.sent) == 1)


async def test_job_with_a_refused_config_is_announced_at_once() -> None:
    bench, stage = Bench(nodes=1, config={"epoch": 1}), Stage(OK)
    bench.controller = controller_of(bench, stage)
    await bench.reconcile()
    async with stage.running():
        await stage.until(lambda: len(stage.sent) == 1)
    assert b'"type":"ddpjob.failed"' in stage.sent[0][2]
    assert b'"state":"Invalid"' in stage.sent[0][2]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["a rank fails", "three stalled attempts fail the job"])
async def test_end_is_announced_wherever_the_controller_is_killed(
    name: str, after: bool, subtests: pytest.Subtests
) -> None:
    async def run(kill: int | None) -> tuple[Simulation, set[str]]:
        ids = set[str]()

        def observe(job: DDPJob) -> None:
            found = find_notifications(job, now=simulation.now, age=timedelta(minutes=15))
            ids.update(
                notification.id
                for notification in found
                if b"ddpjob.recovered" not in notification.body
            )

        simulation = Simulation(FLOWS[name], observe=observe)
        if kill is not None:
            simulation.cluster.kill_at(kill, after=after)
        await simulation.run()
        return simulation, ids

    undisturbed, announced = await run(None)
    assert len(announced) == 1
    for write in range(1, len(undisturbed.cluster.writes) + 1):
        with subtests.test(write=write):
            assert (await run(write))[1] == announced
