"""Any status that an agent may forge leads to a decision without control characters."""

import json
import os
import random
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.pod_view import PodView, Termination
from ddp_wire.messages import AgentPhase, AgentStatus
from tests.operator.support import DEFAULTS, UID, active_job, all_pods, pod, to_wire, world

SEED = int(os.environ.get("DDP_SEED", "0"))
HOSTILE = "\x00\x07\x08\r\n\x1b[31m\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200f\tplain é 漢"
NUMBERS = (0, 1, -1, 2, 17, 2**31, 2**53, -(2**53), 1e15, 1e308, -1e308, 0.5)
CASES = [pytest.param(10_000, marks=pytest.mark.sweep), 300]


class Forger:
    """Writer of agent statuses with random, hostile values in any field."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def text(self, most: int) -> str:
        return "".join(self._random.choices(HOSTILE, k=self._random.randrange(most)))

    def number(self) -> float:
        return self._random.choice(NUMBERS)

    def maybe(self, value: Any) -> Any:
        return value if self._random.random() < 0.7 else None

    def status(self) -> dict[str, Any]:
        pick = self._random.choice
        attempt = pick([1, 1, 1, 2, 7, 2**40])
        rank = {
            "attempt": attempt,
            "rank": pick([0, 1, 5, -1]),
            "localRank": 0,
            "phase": pick(["Starting", "Training", "Done"]),
            "step": int(self.number()) if abs(self.number()) < 2**53 else 3,
            "at": abs(self.number()) % 253_402_300_799,
        }
        failure = {
            "attempt": attempt,
            "at": abs(self.number()) % 253_402_300_799,
            "rank": self.maybe(pick([0, 1, 99])),
            "exitCode": self.maybe(pick([0, 1, 2, 74, 85, 255])),
            "signal": self.maybe(self.text(80)),
            "message": self.text(200),
            "traceback": self.text(900),
            "secondary": pick([True, False]),
            "outOfMemory": pick([True, False]),
        }
        hang = {
            "rank": pick([0, 1, 7]),
            "step": 3,
            "activity": self.text(30),
            "seconds": abs(self.number()) % 1e9,
            "blocked": self.text(90),
            "inspection": {"waits": True, "stack": f'File "{self.text(50)}"', "number": 3}
            | {"collectives": [self.text(60)]},
        }
        progress = {
            "step": 5,
            "totalSteps": self.maybe(int(pick([0, 1, 10, -5]))),
            "loss": self.maybe(self.number()),
            "samplesPerSecond": self.maybe(self.number()),
            "metrics": {self.text(30): self.number() for _ in range(3)},
            "straggler": self.maybe({"rank": 1, "ratio": 1.5, "part": self.text(20)}),
        }
        return {
            "jobUid": pick([UID, UID, "", self.text(40)]),
            "nodeIndex": pick([0, 1, 9]),
            "attempt": attempt,
            "phase": pick([phase.value for phase in AgentPhase]),
            "since": abs(self.number()) % 253_402_300_799,
            "ranks": [rank],
            "progress": self.maybe(progress),
            "checkpoint": self.maybe({"step": 3, "path": self.text(60), "at": 1.0}),
            "failure": self.maybe(failure),
            "hang": self.maybe([hang]),
        }

    def pod(self, view: PodView, final: AgentStatus | None) -> PodView:
        """Return a view of the pod while it runs or after its end."""
        if self._random.random() < 0.7:
            return view
        code = self._random.choice([0, 1, 2, 85, 137, 255])
        end = Termination(code, self._random.choice(["Error", "OOMKilled"]), None, final)
        return pod(
            active_job(), view.index, phase="Failed" if code else "Succeeded", termination=end
        )


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def controls(text: str) -> set[str]:
    """Return the control characters in a text, and the characters that change its direction."""
    kinds = {"Cc", "Zl", "Zp", "Cs"}
    found = {c for c in text if unicodedata.category(c) in kinds}
    return found | {c for c in text if unicodedata.bidirectional(c) in {"RLO", "RLI", "LRE", "RLE"}}


@pytest.mark.parametrize("count", CASES)
def test_forged_agent_statuses_raise_no_error_and_give_plain_text(count: int) -> None:
    """The operator raises no exception and writes no control character to a status or an Event."""
    forger, read = Forger(SEED), 0
    job = active_job()
    for _ in range(count):
        statuses: dict[int, AgentStatus] = {}
        for index in (0, 1):
            try:
                statuses[index] = AgentStatus.model_validate_json(json.dumps(forger.status()))
            except ValidationError:
                continue
        read += len(statuses)
        views = [forger.pod(one, statuses.get(one.index)) for one in all_pods(job)]
        plan = decide(world(job, views, statuses=statuses), DEFAULTS)
        written = to_wire(plan.status)
        traceback = (written.get("lastFailure") or {}).pop("traceback", "")
        assert controls(traceback) <= {"\n", "\t"}
        for text in (*strings(written), *(event.message for event in plan.events)):
            assert not controls(text), repr(text)
    assert read > count, "most forged statuses must be readable"
