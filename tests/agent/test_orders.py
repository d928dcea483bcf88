"""Attempt orders from the annotation file and from direct requests."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_agent.orders import MOST_AHEAD, STOP, AttemptOrders
from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP
from ddp_wire.messages import AttemptOrder
from ddp_wire.orders import Order


def orders_of(home: Path) -> AttemptOrders:
    return AttemptOrders("uid-1", home)


def request(attempt: int) -> AttemptOrder:
    return AttemptOrder(job_uid="uid-1", attempt=attempt)


def newest_after(home: Path, *contents: bytes) -> list[object]:
    """Return the newest order after each content of the file."""
    orders = orders_of(home)
    found: list[object] = []
    for content in contents:
        (home / ATTEMPT_FILE).write_bytes(content)
        found.append(orders.newest())
    return found


def test_there_is_no_order_before_the_kubelet_writes_one(tmp_path: Path) -> None:
    assert orders_of(tmp_path).newest() is None
    assert orders_of(tmp_path / "missing").newest() is None


def test_newest_order_follows_the_order_file(tmp_path: Path) -> None:
    assert newest_after(tmp_path, b"1", b"2\n", b" 10 ") == [Order(1), Order(2), Order(10)]


def test_older_orders_are_ignored(tmp_path: Path) -> None:
    found = newest_after(tmp_path, b"2", b"1", b"3", b"2")
    assert found == [Order(2), Order(2), Order(3), Order(3)]


def test_stop_order_is_final(tmp_path: Path) -> None:
    stop = ATTEMPT_STOP.encode()
    assert newest_after(tmp_path, stop, b"7", b"") == [STOP, STOP, STOP]


@pytest.mark.parametrize(
    "noise", [b"", b"\n", b"-4", b"four", b"4.5", b"\xff\xfe", b"sto", b"4 5", b"9" * 5000]
)
def test_unreadable_order_file_changes_no_order(tmp_path: Path, noise: bytes) -> None:
    assert newest_after(tmp_path, noise) == [None]
    assert newest_after(tmp_path, b"3", noise) == [Order(3), Order(3)]


def test_direct_requests_count_like_orders_in_the_file(tmp_path: Path) -> None:
    orders = orders_of(tmp_path)
    assert orders.accept(request(2))
    assert orders.newest() == Order(2)
    (tmp_path / ATTEMPT_FILE).write_text("1")
    assert orders.newest() == Order(2)
    (tmp_path / ATTEMPT_FILE).write_text("3")
    assert orders.accept(request(2))
    assert orders.newest() == Order(3)
    (tmp_path / ATTEMPT_FILE).write_text(ATTEMPT_STOP)
    assert orders.accept(request(9))
    assert orders.newest() is STOP


@pytest.mark.parametrize("attempt", [3 + MOST_AHEAD + 1, 2**40, 10**900])
def test_request_far_ahead_of_the_order_file_is_refused(tmp_path: Path, attempt: int) -> None:
    """Otherwise one request of an attacker would make the agent ignore the operator forever."""
    orders = orders_of(tmp_path)
    (tmp_path / ATTEMPT_FILE).write_text("3")
    assert not orders.accept(request(attempt))
    assert orders.newest() == Order(3)
    assert orders.accept(request(3 + MOST_AHEAD))


def test_deleted_order_file_changes_no_order(tmp_path: Path) -> None:
    orders = orders_of(tmp_path)
    (tmp_path / ATTEMPT_FILE).write_text("3")
    assert orders.newest() == Order(3)
    (tmp_path / ATTEMPT_FILE).unlink()
    assert orders.newest() == Order(3)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), max_size=10))
def test_newest_order_is_the_one_with_the_highest_attempt_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    home = tmp_path_factory.mktemp("info")
    found = newest_after(home, *(str(number).encode() for number in numbers))
    assert found == [Order(max(numbers[: i + 1])) for i in range(len(numbers))]
