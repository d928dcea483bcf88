"""Tests of the gate: another thread reads the state only while nothing changes it."""

import threading
from collections.abc import Iterator

import pytest

from ddp_trainer.checkpoint.gate import Gate


def acquired(gate: Gate, seconds: float = 0.0) -> bool:
    """Return whether another thread can hold the gate."""
    found: list[bool] = []

    def hold() -> None:
        with gate.held(seconds) as whole:
            found.append(whole)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    return found[0]


def test_gate_can_be_held_only_while_it_is_open() -> None:
    gate = Gate()
    assert not acquired(gate)
    with gate:
        assert acquired(gate)
        with gate:
            assert acquired(gate)
        assert acquired(gate)
    assert not acquired(gate)


def test_thread_waits_until_the_gate_opens() -> None:
    gate, held = Gate(), threading.Event()

    def hold() -> None:
        with gate.held(30) as whole:
            assert whole
            held.set()

    thread = threading.Thread(target=hold)
    thread.start()
    with gate:
        assert held.wait(30)
    thread.join()


def test_main_thread_waits_for_a_thread_that_holds_the_gate() -> None:
    gate, holds, ends = Gate(), threading.Event(), threading.Event()
    closed: list[bool] = []

    def hold() -> None:
        with gate.held(30):
            holds.set()
            ends.wait(30)
            closed.append(False)

    with gate:
        thread = threading.Thread(target=hold)
        thread.start()
        holds.wait(30)
        ends.set()
    closed.append(True)
    thread.join()
    assert closed == [False, True]


def test_gate_knows_the_error_that_left_it_open() -> None:
    gate = Gate()
    error = RuntimeError("a peer was lost")
    with pytest.raises(RuntimeError), gate:
        raise error
    assert gate.left_open_by(error)
    with pytest.raises(ValueError, match="told") as told:
        raise ValueError("told") from error
    assert gate.left_open_by(told.value)
    assert not gate.left_open_by(RuntimeError("in an update"))
    with gate:
        pass
    assert not gate.left_open_by(error)


def test_items_are_prepared_while_the_gate_is_open_and_used_while_it_is_closed() -> None:
    gate, prepared = Gate(), list[bool]()

    def items() -> Iterator[int]:
        for _ in range(2):
            prepared.append(acquired(gate))
            yield len(prepared)

    used = [acquired(gate) for _ in gate.during(items())]
    assert (prepared, used) == ([True, True], [False, False])
