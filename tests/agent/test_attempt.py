"""The file that orders attempts."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_agent.attempt import STOP, AttemptFile
from ddp_wire.contract import ATTEMPT_FILE, ATTEMPT_STOP


def orders(home: Path, *contents: bytes) -> list[object]:
    """What is read after each content."""
    file = AttemptFile(home)
    found: list[object] = []
    for content in contents:
        (home / ATTEMPT_FILE).write_bytes(content)
        found.append(file.read())
    return found


def test_there_is_no_order_before_the_kubelet_has_written_one(tmp_path: Path) -> None:
    assert AttemptFile(tmp_path).read() is None
    assert AttemptFile(tmp_path / "missing").read() is None


def test_the_order_follows_the_file(tmp_path: Path) -> None:
    assert orders(tmp_path, b"1", b"2\n", b" 10 ") == [1, 2, 10]


def test_orders_never_go_back(tmp_path: Path) -> None:
    assert orders(tmp_path, b"2", b"1", b"3", b"2") == [2, 2, 3, 3]


def test_the_order_to_stop_stands_whatever_comes_later(tmp_path: Path) -> None:
    stop = ATTEMPT_STOP.encode()
    assert orders(tmp_path, stop, b"7", b"") == [STOP, STOP, STOP]


@pytest.mark.parametrize("noise", [b"", b"\n", b"-4", b"four", b"4.5", b"\xff\xfe", b"sto", b"4 5"])
def test_what_cannot_be_read_is_no_news(tmp_path: Path, noise: bytes) -> None:
    assert orders(tmp_path, noise) == [None]
    assert orders(tmp_path, b"3", noise) == [3, 3]


def test_what_was_told_counts_like_what_is_written(tmp_path: Path) -> None:
    file = AttemptFile(tmp_path)
    file.tell(2)
    assert file.read() == 2
    (tmp_path / ATTEMPT_FILE).write_text("1")
    assert file.read() == 2
    (tmp_path / ATTEMPT_FILE).write_text("3")
    file.tell(2)
    assert file.read() == 3
    (tmp_path / ATTEMPT_FILE).write_text(ATTEMPT_STOP)
    file.tell(9)
    assert file.read() is STOP


def test_a_file_that_goes_away_is_no_news(tmp_path: Path) -> None:
    file = AttemptFile(tmp_path)
    (tmp_path / ATTEMPT_FILE).write_text("3")
    assert file.read() == 3
    (tmp_path / ATTEMPT_FILE).unlink()
    assert file.read() == 3


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), max_size=10))
def test_the_order_is_the_highest_number_so_far(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    home = tmp_path_factory.mktemp("info")
    found = orders(home, *(str(number).encode() for number in numbers))
    assert found == [max(numbers[: i + 1]) for i in range(len(numbers))]
