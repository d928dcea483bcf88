"""Fuzz tests: a spec is rejected with the name of a field, or reaches a documented state.

`make test` plays a sample chosen by `DDP_SEED`; `make faults` plays 500 specs.
"""

import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

from ddp_operator.cluster.base import ClusterError, ConflictError
from tests.api.client import RefusedError
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.simulated_job import SimulatedJob
from tests.api.spec_strategy import specs
from tests.operator.support import job_manifest

pytestmark = pytest.mark.api

SEED = int(os.environ.get("DDP_SEED", "0"))
MAX_RECONCILES = 40
SAMPLE, ALL = 60, 500
FIELD = re.compile(r"\b(spec|metadata)(\.\w|\[|:)")
DOCUMENTED = set(
    re.findall(
        r"^\| ([A-Z]\w+) \|",
        (Path(__file__).parents[2] / "docs" / "use" / "jobs.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
"""Reasons that the STATUS column may show, from the table in docs/use/jobs.md."""
REFUSED_BY_THE_LOOP = "Invalid config"
"""Invalid for a setting of the training loop, which no schema of the API server knows."""
REFUSED_HERE = "Invalid in this installation"
"""Invalid because the chart's values do not allow the field."""
_HERE = re.compile(r"is not available: |workers\.hostPorts of this|checkpointClaims of the chart")
_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
_JUDGED = settings(deadline=None, database=None, suppress_health_check=_CHECKS, print_blob=False)


class Fuzz:
    """Plays specs one after another in one namespace and counts their results."""

    def __init__(
        self, environment: OperatorEnvironment, namespace: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        self._environment, self._namespace, self._caplog = environment, namespace, caplog
        self._numbers = itertools.count(1)
        self._start = time.monotonic()
        self.ends: Counter[str] = Counter()

    async def play(self, spec: dict[str, Any]) -> None:
        """Create a job with this spec and follow it to a final state."""
        self._caplog.clear()
        simulated = SimulatedJob(
            self._environment, self._namespace, name=f"job-{next(self._numbers)}"
        )
        try:
            await simulated.apply({**job_manifest(), "spec": spec})
        except RefusedError as refused:
            sentence = str(refused)
        else:
            sentence = ""
        if sentence:
            assert FIELD.search(sentence), f"the message names no field: {sentence}"
            self.ends["rejected"] += 1
            return
        try:
            end = await self._end(simulated)
        finally:
            await simulated.delete()
        expected = {"deleted", REFUSED_BY_THE_LOOP, REFUSED_HERE}
        assert end in DOCUMENTED - {"Invalid"} | expected, "the API server accepted an invalid spec"
        raised = [r.getMessage() for r in self._caplog.records if r.exc_info]
        assert not raised
        self.ends[end] += 1

    async def _end(self, simulated: SimulatedJob) -> str:
        """Return the state in which the job stays, or its end."""
        operator, blocked, seen = simulated.new_operator(), False, ""
        for _ in range(MAX_RECONCILES):
            try:
                await operator.reconcile_once()
            except ConflictError:
                continue
            except ClusterError:
                if blocked:  # The status holds the rejection after the second reconcile.
                    reason, message = await simulated.summary()
                    assert message, "the job is blocked without a message"
                    return reason
                blocked = True
                continue
            if await simulated.job() is None:
                return "deleted"
            seen, message = await simulated.summary()
            if seen in {"Completed", "Failed", "Suspended", "Invalid"}:
                assert message or seen == "Suspended", f"the job is {seen} without a message"
                if seen == "Invalid" and _HERE.search(message):
                    return REFUSED_HERE
                return REFUSED_BY_THE_LOOP if message.startswith("spec.config: ") else seen
            await simulated.advance()
            simulated.now += timedelta(seconds=1)
        raise AssertionError(f"the job is still {seen} after {MAX_RECONCILES} reconciles")

    def figures(self) -> str:
        """Return the results of all specs in one line."""
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        took = time.monotonic() - self._start
        return f"spec fuzzing: {self.ends.total()} specs, seed {SEED}: {ends}; {took:.0f} s"


@pytest.fixture
def fuzz(
    environment: OperatorEnvironment,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Fuzz]:
    playing = Fuzz(environment, namespace, caplog)
    yield playing
    with capsys.disabled():
        print(f"\n{playing.figures()}")


@seed(SEED)
@settings(_JUDGED, max_examples=SAMPLE)
@given(spec=specs())
async def test_sampled_specs_are_rejected_by_field_or_reach_a_documented_state(
    fuzz: Fuzz, spec: dict[str, Any]
) -> None:
    await fuzz.play(spec)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@seed(SEED)
@settings(_JUDGED, max_examples=ALL)
@given(spec=specs())
async def test_500_specs_are_rejected_by_field_or_reach_a_documented_state(
    fuzz: Fuzz, spec: dict[str, Any]
) -> None:
    await fuzz.play(spec)
