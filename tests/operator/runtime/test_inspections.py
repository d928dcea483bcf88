"""The operator passes the questions of users on to the agents of a job."""

import pytest

from ddp_operator.limits import INSPECTIONS
from ddp_wire.contract import ANNOTATION_INSPECTION
from ddp_wire.messages import InspectionRequest
from tests.operator.runtime.test_controller import KEY, Bench
from tests.operator.support import UID, after


async def training() -> Bench:
    bench = Bench()
    await bench.train()
    return bench


async def ask(bench: Bench, question: str | None) -> float | None:
    """Change the annotation of the job. Return the seconds until the next reconcile."""
    annotations = {} if question is None else {ANNOTATION_INSPECTION: question}
    bench.cache.put_job(bench.cluster.annotate_job(KEY, annotations))
    return await bench.reconcile()


async def test_question_is_sent_once_to_all_pods_without_a_write() -> None:
    bench = await training()
    before = len(bench.cluster.writes)
    await ask(bench, "stacks:a")
    await bench.reconcile()
    await ask(bench, None)
    request = InspectionRequest(job_uid=UID, question="stacks:a")
    assert bench.cluster.questions == [(["digits-0", "digits-1"], request)]
    assert len(bench.cluster.writes) == before


async def test_each_new_question_is_sent() -> None:
    bench = await training()
    for id_ in "abc":
        await ask(bench, f"stacks:{id_}")
    assert [one.question[-1] for _, one in bench.cluster.questions] == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["", "stacks", "profile:a:1000", "rm -rf"])
async def test_other_text_is_ignored(text: str) -> None:
    bench = await training()
    await ask(bench, text)
    assert bench.cluster.questions == []


async def test_job_that_asks_in_a_loop_waits() -> None:
    bench = await training()
    for number in range(int(INSPECTIONS.burst)):
        await ask(bench, f"stacks:{number}")
    assert await ask(bench, "stacks:last") is not None  # It looks again by itself.
    assert len(bench.cluster.questions) == INSPECTIONS.burst
    bench.now = after(1 / INSPECTIONS.per_second)
    await bench.reconcile()
    assert bench.cluster.questions[-1][1].question == "stacks:last"


async def test_question_about_a_job_that_does_not_run_is_not_sent() -> None:
    bench = Bench(suspend=True)
    await bench.reconcile_until_idle()
    await ask(bench, "stacks:a")
    assert bench.cluster.questions == []
