"""Tests that kill the operator before and after its writes: the run must end the same.

`make test` plays a sample chosen by `DDP_SEED`; `make faults` plays every kill at every write.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterable, Sequence

import pytest

from tests.api.client import Api
from tests.api.control_plane import ControlPlane
from tests.api.crash import FlowRun, Outcome
from tests.api.in_process_operator import Kill, OperatorEnvironment
from tests.api.kubelet import FakeAgents
from tests.scenarios.flows import FLOWS

pytestmark = pytest.mark.api

AT_ONCE = 24
SAMPLE = 24
MORE_WRITES = 8
"""Number of additional writes that a run with one kill may need."""
Case = tuple[str, Kill | None]


async def run_cases(
    environment: OperatorEnvironment, prefix: str, cases: Sequence[Case]
) -> list[Outcome]:
    """Run cases concurrently, each in its own namespace."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(flow: str, kill: Kill | None) -> Outcome:
        async with places:
            when = f"{'after' if kill.after else 'before'}-{kill.write}" if kill else "whole"
            namespace = f"{prefix}-{list(FLOWS).index(flow)}-{when}"
            return await FlowRun(environment, FLOWS[flow], namespace, kill).outcome()

    return list(await asyncio.gather(*(one(*case) for case in cases)))


def single_kills(flow: str, writes: int) -> Iterable[Case]:
    """Yield every possible single kill of a flow."""
    for write in range(1, writes + 1):
        for after in (False, True):
            yield flow, Kill(write, after=after)


async def enumerate_kills(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, sample: int | None
) -> tuple[str, list[str]]:
    """Run all flows undisturbed, then with each kill or a sample of them.

    Returns:
        The figures in one line, and every violation.
    """
    start, prefix = time.monotonic(), "every-kill" if sample is None else "some-kills"
    async with OperatorEnvironment.of(control_plane, api, agents) as environment:
        undisturbed = dict(
            zip(
                FLOWS,
                await run_cases(environment, prefix, [(flow, None) for flow in FLOWS]),
                strict=True,
            )
        )
        problems = [f"{flow}: {p}" for flow, run in undisturbed.items() for p in run.problems]
        cases = [
            case
            for flow, run in undisturbed.items()
            for case in single_kills(flow, run.sent_writes)
        ]
        if sample is not None:
            cases = random.Random(os.environ.get("DDP_SEED", "0")).sample(cases, sample)  # noqa: S311
        for (flow, kill), run in zip(
            cases, await run_cases(environment, prefix, cases), strict=True
        ):
            problems += [f"{flow}, {kill}: {p}" for p in differences(undisturbed[flow], run)]
    writes = sum(run.sent_writes for run in undisturbed.values())
    figures = (
        f"crash enumeration: {len(FLOWS)} flows, {writes} writes, {len(FLOWS) + len(cases)} runs,"
        f" {len(problems)} violations, {time.monotonic() - start:.0f} s"
    )
    return figures, problems


def differences(undisturbed: Outcome, run: Outcome) -> list[str]:
    """Return what differs between a run with one kill and the undisturbed run."""
    problems = list(run.problems)
    if run.kills != 1:
        problems.append(f"the operator was killed {run.kills} times, expected once")
    final, expected = (_by_path(each.final_state) for each in (run, undisturbed))
    problems += [
        f"at the end {path} is {final.get(path)!r}, undisturbed {expected.get(path)!r}"
        for path in sorted(final.keys() | expected.keys())
        if final.get(path) != expected.get(path)
    ]
    if run.writes > undisturbed.writes + MORE_WRITES:
        problems.append(f"{run.writes} writes, undisturbed {undisturbed.writes}")
    return problems


def _by_path(value: object, path: str = "") -> dict[str, object]:
    """Return the leaves of a state by their paths, and empty objects as leaves."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {k: v for key in value for k, v in _by_path(value[key], f"{path}.{key}").items()}


async def test_operator_killed_at_a_sampled_write_does_not_change_the_outcome(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, problems = await enumerate_kills(control_plane, api, agents, SAMPLE)
    with capsys.disabled():
        print(f"\n{figures}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.sweep
@pytest.mark.timeout(1800)
async def test_operator_killed_at_any_write_does_not_change_the_outcome(
    control_plane: ControlPlane, api: Api, agents: FakeAgents, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, problems = await enumerate_kills(control_plane, api, agents, None)
    with capsys.disabled():
        print(f"\n{figures}")
    assert not problems, "\n".join(problems[:20])
