"""Tests of attempts that exclude some nodes: agents of members start, other agents wait."""

from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.orders import Interruption
from ddp_agent.processes.launch import Launch, prepare
from ddp_agent.status_writer import StatusWriter
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import AgentPhase
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import config, members

ADDRESSES = "digits-{index:04d}.digits"
PATTERN: dict[str, str | None] = {
    Env.ADDRESS_PATTERN.value: ADDRESSES,
    Env.BARRIER_PORT.value: "0",
}


def launch_of(home: Path, node: int) -> Launch:
    """Return the launch of a node in an attempt of the nodes 1 and 3."""
    address = f"digits-{node:04d}.digits"
    made = config(home, **PATTERN, **{Env.NODE_INDEX: str(node), Env.POD_ADDRESS: address})
    return prepare(made, members(made, 2, {3, 1}), home / "scratch", {})


def test_first_member_hosts_the_rendezvous_of_all_members(tmp_path: Path) -> None:
    first, second = (launch_of(tmp_path, node).arguments for node in (1, 3))
    for arguments in (first, second):
        assert "--nnodes=2" in arguments
        assert any(a.startswith("--rdzv-endpoint=digits-0001.digits:") for a in arguments)
    assert any("is_host=true" in argument for argument in first)
    assert any("is_host=false" in argument for argument in second)


def test_sorted_addresses_of_the_members_are_in_rank_order() -> None:
    nodes = [0, 1, 2, 9, 10, 99, 100, 999, 1000, 9998]
    addresses = [ADDRESSES.format(index=node) for node in nodes]
    assert sorted(addresses) == addresses


@pytest.mark.parametrize("pattern", ["digits", "{index", "{}", "{index}-{other}"])
def test_address_pattern_needs_the_field_index(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="DDP_ADDRESS_PATTERN"):
        config(tmp_path, **{Env.ADDRESS_PATTERN: pattern})


def test_only_the_first_member_counts_notices(tmp_path: Path) -> None:
    made = config(tmp_path, **PATTERN, **{Env.NODE_INDEX: "1"})
    writer = StatusWriter(made, Clock())
    counts = []
    for attempt, nodes in enumerate(({0, 1}, {1, 2}, {0, 2}), 1):
        writer.start_attempt(members(made, attempt, nodes), [])
        counts.append(writer.status.unread_notices)
    assert counts == [None, 0, None]
    assert writer.status.members == "0,2"


def test_node_that_is_no_member_waits_for_an_order_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "")
    node = AgentHarness(tmp_path, env={**PATTERN, Env.NODES.value: "2"})
    node.write_order("1:1")

    def name_it() -> None:
        assert (node.status.members, node.status.command) == ("1", [])
        node.write_order("2:0")

    node.when(lambda status: status.attempt == 1 and bool(status.warm), name_it)
    assert node.run() == ExitCode.OK
    assert node.phases() == ["1:Waiting", "2:Waiting", "2:Starting", "2:Succeeded"]


def test_member_that_is_left_out_ends_its_ranks_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "run_forever()")
    node = AgentHarness(tmp_path, env={**PATTERN, Env.NODES.value: "2"})
    node.write_order("1:0")
    node.when(phase("Starting"), lambda: node.write_order("2:1:save"))
    node.when(phase("Waiting", 2), lambda: node.stop("terminate"))
    assert node.run() == ExitCode.PREEMPTED
    assert node.status.phase is AgentPhase.WAITING
    assert node.status.attempt == 2


SAVES_FOR_LONG = """
def save():
    time.sleep(2)
    open(os.path.join(home, "saved"), "w").close()
    sys.exit(0)

if attempt == 1:
    on_sigterm(save)
    open(os.path.join(home, "ready"), "w").close()
    run_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("order", "saves"), [("2:0:save", True), ("2:0", False)])
def test_ranks_get_time_to_save_only_before_a_resize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, saves: bool
) -> None:
    stub_torchrun(monkeypatch, f"home = {str(tmp_path)!r}\n{SAVES_FOR_LONG}")
    node = AgentHarness(tmp_path, env=PATTERN)
    node.write_order("1:0")
    node.when(lambda _: (tmp_path / "ready").exists(), lambda: node.write_order(order))
    assert node.run() == ExitCode.OK
    assert (node.status.attempt, node.status.phase) == (2, AgentPhase.SUCCEEDED)
    assert (tmp_path / "saved").exists() is saves


def test_ranks_that_stop_before_the_order_arrives_restart_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may have its order already, and then all ranks stop at the same step."""
    stub_torchrun(monkeypatch, f"if attempt == 1: fail(rank=0, exitCode={ExitCode.PREEMPTED:d})")
    node = AgentHarness(tmp_path, env=PATTERN)
    node.write_order("1:0")
    node.when(phase("Preempted"), lambda: node.write_order("2:0:save"))
    assert node.run() == ExitCode.OK
    assert node.phases()[-2:] == ["2:Starting", "2:Succeeded"]


@pytest.mark.slow
def test_newer_order_ends_the_wait_for_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, f"home = {str(tmp_path)!r}\n{SAVES_FOR_LONG}")
    node = AgentHarness(tmp_path, env=PATTERN)
    node.write_order("1:0")

    def order_two() -> None:
        node.write_order("2:0:save")
        assert node.orders.interruption(1) is Interruption.RESIZE
        node.write_order("3:0")

    node.when(lambda _: (tmp_path / "ready").exists(), order_two)
    assert node.run() == ExitCode.OK
    assert node.status.attempt == 3
    assert not (tmp_path / "saved").exists()
