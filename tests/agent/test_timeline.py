"""The timeline of an attempt: the parts of a recovery."""

from pathlib import Path

import pytest

from ddp_agent.status.heartbeats import extend_timeline
from ddp_wire.messages import AgentStatus, Timeline
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import heartbeat

GANG = """
log_dir = next(a for a in sys.argv if a.startswith("--log-dir=")).partition("=")[2]
os.makedirs(f"{log_dir}/run/attempt_0/0")
open(f"{log_dir}/run/attempt_0/0/stderr.log", "w").close()
heartbeat("Training", joinedAt=time.time())
if attempt == 1:
    run_forever()
time.sleep(0.01)
heartbeat("Training", joinedAt=time.time(), firstStepAt=time.time())
run_forever()
"""


def test_milestone_has_the_time_at_which_the_last_rank_reached_it() -> None:
    heartbeats = [
        heartbeat(joined_at=2.0, first_step_at=5.0),
        heartbeat(joined_at=3.0, first_step_at=4.0),
    ]
    found = extend_timeline(Timeline(ordered=1.0), heartbeats, 2)
    assert (found.joined, found.stepped) == (3.0, 5.0)


@pytest.mark.parametrize("missing", ["heartbeat", "time"])
def test_milestone_is_absent_until_every_rank_has_reached_it(missing: str) -> None:
    heartbeats = [heartbeat(joined_at=2.0, first_step_at=3.0), heartbeat(joined_at=2.0)]
    found = extend_timeline(
        Timeline(ordered=1.0), heartbeats[:1] if missing == "heartbeat" else heartbeats, 2
    )
    assert found.stepped is None
    assert found.joined == (None if missing == "heartbeat" else 2.0)


def test_timeline_of_a_restart_in_place_goes_from_the_order_to_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, GANG)
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Training"), lambda: node.write_order("2"))

    def stepped(status: AgentStatus) -> bool:
        times = status.timeline
        return status.attempt == 2 and times is not None and times.stepped is not None

    node.when(stepped, node.orders.stop)
    node.run()
    first = next(s for s in node.statuses if s.attempt == 1 and s.phase == "Training").timeline
    assert first is not None
    assert first.stepped is None
    last = node.statuses[-1].timeline
    assert last is not None
    times = [last.ordered, last.launched, last.spawned, last.joined, last.stepped]
    known = [t for t in times if t is not None]
    assert len(known) == 5
    # `spawned` is the agent's own observation, up to a tick later than the ranks' times.
    in_order = [last.ordered, last.launched, last.joined, last.stepped]
    assert in_order == sorted(t for t in in_order if t is not None)
