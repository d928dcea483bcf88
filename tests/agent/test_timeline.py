"""The timeline of an attempt: what a recovery is made of."""

from pathlib import Path

import pytest

from ddp_agent.beats import timeline
from ddp_wire.contract import AgentStatus, Timeline
from tests.agent.harness import Bench, phase, stub_torchrun
from tests.agent.support import beat

GANG = """
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{log_dir}/run/attempt_0/0")
open(f"{log_dir}/run/attempt_0/0/stderr.log", "w").close()
beat("Training", joinedAt=time.time())
if attempt == 1:
    for_ever()
time.sleep(0.01)
beat("Training", joinedAt=time.time(), firstStepAt=time.time())
for_ever()
"""


def test_the_last_rank_to_get_somewhere_counts() -> None:
    beats = [beat(joined_at=2.0, first_step_at=5.0), beat(joined_at=3.0, first_step_at=4.0)]
    found = timeline(Timeline(ordered=1.0), beats, 2)
    assert (found.joined, found.stepped) == (3.0, 5.0)


@pytest.mark.parametrize("missing", ["beat", "word"])
def test_while_a_rank_is_missing_the_gang_has_not_got_there(missing: str) -> None:
    beats = [beat(joined_at=2.0, first_step_at=3.0), beat(joined_at=2.0)]
    found = timeline(Timeline(ordered=1.0), beats[:1] if missing == "beat" else beats, 2)
    assert found.stepped is None
    assert found.joined == (None if missing == "beat" else 2.0)


def test_a_restart_in_place_is_timed_from_the_order_to_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, GANG)
    bench = Bench(tmp_path)
    bench.order("1")
    bench.when(phase("Training"), lambda: bench.order("2"))

    def stepped(status: AgentStatus) -> bool:
        times = status.timeline
        return status.attempt == 2 and times is not None and times.stepped is not None

    bench.when(stepped, bench.agent.terminate)
    bench.run()
    first = next(s for s in bench.said if s.attempt == 1 and s.phase == "Training").timeline
    assert first is not None
    assert first.stepped is None
    last = bench.said[-1].timeline
    assert last is not None
    times = [last.ordered, last.launched, last.spawned, last.joined, last.stepped]
    known = [t for t in times if t is not None]
    assert len(known) == 5
    # What a rank says of itself may be a tick older than what the agent sees of it.
    in_order = [last.ordered, last.launched, last.joined, last.stepped]
    assert in_order == sorted(t for t in in_order if t is not None)
