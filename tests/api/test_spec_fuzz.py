"""Any spec is refused with a sentence that names a field, or reaches a documented state.

`make test` plays some, chosen by `DDP_SEED`; `make faults` plays 500.
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
from tests.api.bench import Bench
from tests.api.client import RefusedError
from tests.api.spec_strategy import specs
from tests.api.stage import Stage
from tests.operator.support import job_manifest

pytestmark = pytest.mark.api

SEED = int(os.environ.get("DDP_SEED", "0"))
LOOKS = 40
SAMPLE, ALL = 60, 500
FIELD = re.compile(r"\b(spec|metadata)(\.\w|\[|:)")
DOCUMENTED = set(
    re.findall(
        r"^\| ([A-Z]\w+) \|",
        (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
"""What the STATUS column may show, by the table in docs/jobs.md."""
_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
_JUDGED = settings(deadline=None, database=None, suppress_health_check=_CHECKS, print_blob=False)


class Fuzz:
    """Plays specs one after the other in one namespace, and counts what becomes of them."""

    def __init__(self, bench: Bench, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
        self._bench, self._namespace, self._caplog = bench, namespace, caplog
        self._numbers = itertools.count(1)
        self._start = time.monotonic()
        self.ends: Counter[str] = Counter()

    async def play(self, spec: dict[str, Any]) -> None:
        """Apply a job of this spec and see it to a state."""
        self._caplog.clear()
        stage = Stage(self._bench, self._namespace, name=f"job-{next(self._numbers)}")
        try:
            await stage.apply({**job_manifest(), "spec": spec})
        except RefusedError as refused:
            sentence = str(refused)
        else:
            sentence = ""
        if sentence:
            assert FIELD.search(sentence), f"names no field: {sentence}"
            self.ends["refused"] += 1
            return
        try:
            end = await self._end(stage)
        finally:
            await stage.clear()
        assert end in DOCUMENTED - {"Invalid"} | {"deleted"}, "the API server took an invalid spec"
        raised = [r.getMessage() for r in self._caplog.records if r.exc_info]
        assert not raised
        self.ends[end] += 1

    async def _end(self, stage: Stage) -> str:
        """The state in which the job stays, or its end."""
        operator, blocked, seen = stage.operator(), False, ""
        for _ in range(LOOKS):
            try:
                await operator.look()
            except ConflictError:
                continue
            except ClusterError:
                if blocked:  # It stays so; the status has the refusal by the second look.
                    reason, message = await stage.summary()
                    assert message, "blocked without a word"
                    return reason
                blocked = True
                continue
            if await stage.job() is None:
                return "deleted"
            seen, message = await stage.summary()
            if seen in {"Completed", "Failed", "Suspended", "Invalid"}:
                assert message or seen == "Suspended", f"{seen} without a word"
                return seen
            await stage.second()
            stage.now += timedelta(seconds=1)
        raise AssertionError(f"still {seen} after {LOOKS} looks")

    def figures(self) -> str:
        """What became of all specs, in a line."""
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        took = time.monotonic() - self._start
        return f"spec fuzzing: {self.ends.total()} specs, seed {SEED}: {ends}; {took:.0f} s"


@pytest.fixture
def fuzz(
    bench: Bench,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Fuzz]:
    playing = Fuzz(bench, namespace, caplog)
    yield playing
    with capsys.disabled():
        print(f"\n{playing.figures()}")


@seed(SEED)
@settings(_JUDGED, max_examples=SAMPLE)
@given(spec=specs())
async def test_some_specs_are_refused_by_field_or_reach_a_documented_state(
    fuzz: Fuzz, spec: dict[str, Any]
) -> None:
    await fuzz.play(spec)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@seed(SEED)
@settings(_JUDGED, max_examples=ALL)
@given(spec=specs())
async def test_500_specs_are_refused_by_field_or_reach_a_documented_state(
    fuzz: Fuzz, spec: dict[str, Any]
) -> None:
    await fuzz.play(spec)
