"""Live output of the ranks in a local run."""

import io
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ddp_operator.cli.rank_output import (
    LONGEST_LINE,
    PAUSE_SECONDS,
    PodLog,
    RankLine,
    RankLines,
    RankOutput,
)
from ddp_operator.cli.view import View


def lines(*reads: str, ranks: range = range(2)) -> list[RankLine]:
    """Return the lines of several reads. Each read reached the current end of the log."""
    parser = RankLines(ranks)
    found = [line for text in reads for line in parser.feed(text, at_end=True, now=0.0)]
    return found + parser.rest()


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        (["[rank 0] one\n[rank 1] two\n"], [(0, "one"), (1, "two")]),
        (["[rank 0] \n"], [(0, "")]),
        (["ddp-agent: attempt 1: torchrun\nW1125 warning\n[rank 0] one\n"], [(0, "one")]),
        (["W1125 [rank 0] one\n"], []),
        (["[rank 7] of another node\n"], []),
        (["[rank 0] no newline"], [(0, "no newline")]),
        (["[rank 0] one[rank 0] \n"], [(0, "one")]),
        (["[rank 0] Load... ", "[rank 0] done\n"], [(0, "Load... done")]),
        (["[rank 0] par[rank 1] two\n[rank 0] tial\n"], [(1, "two"), (0, "partial")]),
        (["[rank 0] doneddp-agent: attempt 1: rank 0 failed\n"], [(0, "done")]),
        (["[rank 0] done[W1127 02:17:34.798581366 TCPStore.cpp:115] [c10d]\n"], [(0, "done")]),
        (["[rank 0] doneE1127 02:17:23.160000 31411 torch/api.py:1002] failed\n"], [(0, "done")]),
        (["[rank 0] par[W1127 02:17:34.7 a.cpp:1] x\n", "[rank 0] tial\n"], [(0, "partial")]),
        (["[rank 0] [W1127 02:17:34.7 a.cpp:1] x\n"], [(0, "[W1127 02:17:34.7 a.cpp:1] x")]),
        (
            ["[rank 0] x[rank0]:[W1127 02:17:34.7 a.cpp:1]\n"],
            [(0, "x[rank0]:[W1127 02:17:34.7 a.cpp:1]")],
        ),
        (["[rank 0] at I1127 02:17:34.7 1 a.cc:1]\n"], [(0, "at I1127 02:17:34.7 1 a.cc:1]")]),
        (["[rank 0] 12:00 [rank 0] loss 1\n"], [(0, "12:00 [rank 0] loss 1")]),
        (["[rank 0] [rank 0] loss 1\n"], [(0, "[rank 0] loss 1")]),
        (["[rank 0] [rank 1] loss 1\n"], [(0, "[rank 1] loss 1")]),
        (["[rank 0] from [rank 5] here\n"], [(0, "from [rank 5] here")]),
    ],
)
def test_log_of_a_pod_is_split_into_the_lines_of_its_ranks(
    reads: list[str], found: list[RankLine]
) -> None:
    assert lines(*reads) == found


def test_lines_do_not_depend_on_how_many_bytes_each_read_returns() -> None:
    text = "[rank 0] one[rank 1] two\n[rank 0] \n[rank 12] x\nforeign\n[rank 1] a [rank 1] b\n" * 3
    whole = lines(text, ranks=range(13))
    for size in (1, 2, 7, 40):
        parser, found = RankLines(range(13)), list[RankLine]()
        for start in range(0, len(text), size):
            found += parser.feed(text[start : start + size], at_end=False, now=0.0)
        assert found + parser.feed("", at_end=True, now=0.0) == whole


def test_line_without_a_newline_is_shown_after_a_pause() -> None:
    parser = RankLines(range(2))
    assert parser.feed("[rank 0] Load... ", at_end=True, now=5.0) == []
    almost = 5.0 + PAUSE_SECONDS * 0.9
    assert parser.feed("[rank 1] busy\n", at_end=True, now=almost) == [(1, "busy")]
    assert parser.feed("", at_end=True, now=5.0 + PAUSE_SECONDS) == [(0, "Load... ")]
    assert parser.feed("[rank 0] done\n", at_end=True, now=9.0) == [(0, "done")]


def test_newline_after_a_shown_partial_line_adds_no_empty_line() -> None:
    parser = RankLines(range(1))
    parser.feed("[rank 0] 10%", at_end=True, now=0.0)
    assert parser.feed("", at_end=True, now=PAUSE_SECONDS) == [(0, "10%")]
    assert parser.feed("[rank 0] \n", at_end=True, now=2.0) == []
    assert parser.feed("[rank 0] \n", at_end=True, now=2.0) == [(0, "")]


def test_very_long_line_is_shown_in_parts() -> None:
    found = lines("[rank 0] " + "x" * (2 * LONGEST_LINE + 5) + "\n[rank 0] next\n")
    assert [len(text) for _, text in found] == [LONGEST_LINE, LONGEST_LINE, 5, 4]


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_log_is_followed_from_its_current_end(tmp_path: Path) -> None:
    log = tmp_path / "digits-0.log"
    append(log, b"[rank 0] of an earlier run\n")
    found = PodLog(log, range(1))
    assert found.read(0.0) == ([], True)
    append(log, b"[rank 0] attempt 1\n")
    assert found.read(0.0) == ([(0, "attempt 1")], True)
    append(log, b"[rank 0] attempt 2\n")
    assert found.read(0.0) == ([(0, "attempt 2")], True)
    assert found.close() == []


def test_log_may_appear_later_and_may_contain_invalid_utf_8(tmp_path: Path) -> None:
    log = tmp_path / "digits-0.log"
    found = PodLog(log, range(1))
    assert found.read(0.0) == ([], True)
    append(log, b"[rank 0] caf\xe9 Bl\xc3")
    assert found.read(0.0) == ([], True)
    append(log, b"\xbcte\n")
    assert found.read(0.0) == ([(0, "caf\ufffd Bl\u00fcte")], True)
    append(log, b"[rank 0] no newline")
    assert found.read(0.0) == ([], True)
    assert found.close() == [(0, "no newline")]


def follow(
    logs: dict[Path, range], write: Callable[[str], None], *, all_ranks: bool = True
) -> RankOutput:
    output = RankOutput(logs, write, all_ranks=all_ranks)
    output.start()
    return output


def test_rank_0_is_shown_without_a_prefix_and_all_ranks_with_their_number(tmp_path: Path) -> None:
    logs = {tmp_path / "digits-0.log": range(2), tmp_path / "digits-1.log": range(2, 4)}
    shown: dict[bool, list[str]] = {False: [], True: []}
    outputs = [follow(logs, shown[each].append, all_ranks=each) for each in (False, True)]
    for log, ranks in logs.items():
        append(log, b"".join(b"[rank %d] hello %d\n" % (rank, rank) for rank in ranks))
    for output in outputs:
        output.close()
    assert "".join(shown[False]) == "hello 0\n"
    assert sorted("".join(shown[True]).splitlines()) == [f"[rank {n}] hello {n}" for n in range(4)]


def test_output_appears_while_the_run_goes_on(tmp_path: Path) -> None:
    log, shown, seen = tmp_path / "digits-0.log", list[str](), threading.Event()

    def write(text: str) -> None:
        shown.append(text)
        seen.set()

    output = follow({log: range(1)}, write)
    append(log, b"[rank 0] first\n")
    assert seen.wait(10.0)
    assert shown == ["[rank 0] first\n"]
    append(log, b"[rank 0] last without an end")
    output.close()
    assert shown[1:] == ["[rank 0] last without an end\n"]


@pytest.mark.parametrize("megabytes", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_large_output_is_shown_completely_and_in_small_parts(
    tmp_path: Path, megabytes: int
) -> None:
    log, sizes = tmp_path / "digits-0.log", list[int]()
    output = RankOutput({log: range(1)}, lambda text: sizes.append(len(text)), all_ranks=False)
    for _ in range(megabytes):
        append(log, (b"[rank 0] " + b"x" * 1015 + b"\n") * 1024)
    tracemalloc.start()
    output.start()
    output.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(sizes) == 1016 * 1024 * megabytes
    assert max(sizes) < 1 << 20
    assert peak < 4 << 20


def test_second_interrupt_does_not_wait_for_the_rest_of_the_output(tmp_path: Path) -> None:
    log, shown = tmp_path / "digits-0.log", list[str]()
    reading, blocked = threading.Event(), threading.Event()

    def write(text: str) -> None:
        shown.append(text)
        reading.set()
        assert blocked.wait(10.0)

    output = follow({log: range(1)}, write)
    append(log, b"[rank 0] x\n" * 100_000)
    assert reading.wait(10.0)
    output.abandon()
    blocked.set()
    output.close()
    assert len(shown) == 1


def view_of(*, terminal: bool, encoding: str = "utf-8") -> tuple[View, io.BytesIO]:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    return View("digits", Console(file=out, force_terminal=terminal, width=40)), raw


def test_view_writes_output_unchanged_above_the_live_line() -> None:
    text = "\x1b[31mred\x1b[0m [bold]\t" + "x" * 100 + "\n"
    for terminal in (False, True):
        view, raw = view_of(terminal=terminal)
        view.output(text)
        view.close()
        assert text.encode() in raw.getvalue()
    assert raw.getvalue() != text.encode()


def test_view_replaces_characters_that_the_terminal_cannot_show() -> None:
    view, raw = view_of(terminal=False, encoding="ascii")
    view.output("Bl\u00fcte\n")
    assert raw.getvalue() == b"Bl?te\n"
