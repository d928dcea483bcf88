"""The operator is killed before and after its writes, on a real API server: the run ends the same.

`make test` plays a sample, chosen by `DDP_SEED`; `make faults` plays every kill at every write.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterable, Sequence

import pytest

from tests.api.bench import Bench, Kill
from tests.api.client import Api
from tests.api.crash import Outcome, Run
from tests.api.kubelet import Agents
from tests.api.plane import Plane
from tests.scenarios.flows import FLOWS

pytestmark = pytest.mark.api

AT_ONCE = 24
SAMPLE = 24
MORE_WRITES = 8
"""How many more writes than undisturbed a run with one kill may take."""
Case = tuple[str, Kill | None]


async def play(bench: Bench, prefix: str, cases: Sequence[Case]) -> list[Outcome]:
    """Play cases, many at a time, each in a namespace of its own."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(flow: str, kill: Kill | None) -> Outcome:
        async with places:
            when = f"{'after' if kill.after else 'before'}-{kill.write}" if kill else "whole"
            namespace = f"{prefix}-{list(FLOWS).index(flow)}-{when}"
            return await Run(bench, FLOWS[flow], namespace, kill).outcome()

    return list(await asyncio.gather(*(one(*case) for case in cases)))


def kills(flow: str, writes: int) -> Iterable[Case]:
    """Every way to be killed once."""
    for write in range(1, writes + 1):
        for after in (False, True):
            yield flow, Kill(write, after=after)


async def enumerate_kills(
    plane: Plane, api: Api, agents: Agents, sample: int | None
) -> tuple[str, list[str]]:
    """Play all flows undisturbed, then with each kill or a sample of them.

    Returns:
        The figures in a line, and every violation.
    """
    start, prefix = time.monotonic(), "every-kill" if sample is None else "some-kills"
    async with Bench.of(plane, api, agents) as bench:
        whole = dict(
            zip(FLOWS, await play(bench, prefix, [(flow, None) for flow in FLOWS]), strict=True)
        )
        problems = [f"{flow}: {p}" for flow, run in whole.items() for p in run.problems]
        cases = [case for flow, run in whole.items() for case in kills(flow, run.sent)]
        if sample is not None:
            cases = random.Random(os.environ.get("DDP_SEED", "0")).sample(cases, sample)  # noqa: S311
        for (flow, kill), run in zip(cases, await play(bench, prefix, cases), strict=True):
            problems += [f"{flow}, {kill}: {p}" for p in compared(whole[flow], run)]
    writes = sum(run.sent for run in whole.values())
    figures = (
        f"crash enumeration: {len(FLOWS)} flows, {writes} writes, {len(FLOWS) + len(cases)} runs,"
        f" {len(problems)} violations, {time.monotonic() - start:.0f} s"
    )
    return figures, problems


def compared(whole: Outcome, run: Outcome) -> list[str]:
    """What is wrong with a run that was disturbed once."""
    problems = list(run.problems)
    if run.deaths != 1:
        problems.append(f"the operator died {run.deaths} times")
    if run.rest != whole.rest:
        problems.append(f"it left {run.rest}, undisturbed {whole.rest}")
    if run.writes > whole.writes + MORE_WRITES:
        problems.append(f"{run.writes} writes, undisturbed {whole.writes}")
    return problems


async def test_case_01_an_operator_killed_at_some_write_changes_nothing_about_the_end(
    plane: Plane, api: Api, agents: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, problems = await enumerate_kills(plane, api, agents, SAMPLE)
    with capsys.disabled():
        print(f"\n{figures}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.sweep
@pytest.mark.timeout(1800)
async def test_case_01_an_operator_killed_at_any_write_changes_nothing_about_the_end(
    plane: Plane, api: Api, agents: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, problems = await enumerate_kills(plane, api, agents, None)
    with capsys.disabled():
        print(f"\n{figures}")
    assert not problems, "\n".join(problems[:20])
