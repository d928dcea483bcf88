"""The output of ranks is printed in whole lines, whatever pieces they write."""

import io
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import tail_log

from ddp_agent.failures import FAILURE_FILE_ENV
from ddp_agent.launcher import whole_lines
from ddp_wire.contract import Env

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the patch until the end of the test."""
    monkeypatch.setattr(tail_log, "tail_logfile", tail_log.tail_logfile)
    whole_lines.apply()


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    with io.StringIO() as stream:
        yield stream


def tail(output: io.StringIO, *files: Path) -> tail_log.TailLog:
    """Print files as torchrun does."""
    names = {rank: str(file) for rank, file in enumerate(files)}
    prefixes = {rank: f"[rank {rank}] " for rank in names}
    return tail_log.TailLog("ranks", names, output, prefixes, interval_sec=0.01).start()


def wait_for(output: io.StringIO, text: str) -> None:
    end = time.monotonic() + PATIENCE
    while text not in output.getvalue():
        assert time.monotonic() < end, output.getvalue()
        time.sleep(0.01)


def test_lines_that_ranks_write_in_pieces_stay_whole(tmp_path: Path, output: io.StringIO) -> None:
    ranks = [tmp_path / str(rank) for rank in range(4)]
    tailed = tail(output, *ranks)

    def write(rank: int, path: Path) -> None:
        chance = random.Random(rank)  # noqa: S311 (the same pieces each time)
        text = "".join(f"line {rank} é {number}\n" for number in range(300)).encode()
        with path.open("wb", buffering=0) as file:
            while text:
                size = chance.randint(1, 9)
                file.write(text[:size])
                text = text[size:]
                if chance.random() < 0.05:
                    time.sleep(0.002)

    writers = [threading.Thread(target=write, args=one) for one in enumerate(ranks)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    tailed.stop()
    lines = output.getvalue().splitlines()
    expected = [[f"[rank {r}] line {r} é {n}" for n in range(300)] for r in range(4)]
    for rank, own in enumerate(expected):
        assert [line for line in lines if line.startswith(f"[rank {rank}]")] == own
    assert len(lines) == 1200


def test_last_line_without_an_end_is_printed(tmp_path: Path, output: io.StringIO) -> None:
    (tmp_path / "0").write_text("one\nkilled in the mid")
    tail(output, tmp_path / "0").stop()
    assert output.getvalue() == "[rank 0] one\n[rank 0] killed in the mid\n"


def test_line_that_does_not_end_is_printed_soon(
    tmp_path: Path, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_lines, "HOLD_SECONDS", 0.05)
    with (tmp_path / "0").open("w") as file:
        tailed = tail(output, tmp_path / "0")
        file.write("continue? ")
        file.flush()
        wait_for(output, "[rank 0] continue? \n")
        file.write("yes\n")
    tailed.stop()
    assert output.getvalue() == "[rank 0] continue? \n[rank 0] yes\n"


def test_progress_bar_is_a_line_for_each_state(tmp_path: Path, output: io.StringIO) -> None:
    (tmp_path / "0").write_bytes(b"10%\r20%\r\n30%")
    tail(output, tmp_path / "0").stop()
    assert output.getvalue() == "[rank 0] 10%\n[rank 0] 20%\n[rank 0] 30%\n"


def test_endless_line_is_split(
    tmp_path: Path, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_lines, "LONGEST", 10)
    monkeypatch.setattr(whole_lines, "_CHUNK", 5)
    (tmp_path / "0").write_text("x" * 25 + "\n")
    tail(output, tmp_path / "0").stop()
    assert [len(line) for line in output.getvalue().splitlines()] == [19, 19, 14]


def test_file_that_never_exists_ends_the_tail(tmp_path: Path, output: io.StringIO) -> None:
    tail(output, tmp_path / "missing").stop()
    assert output.getvalue() == ""


PIECES = """
import sys, time
sys.stdout.write("begin ")
sys.stdout.flush()
time.sleep(0.4)
sys.stdout.write("end\\n")
"""


@pytest.mark.slow
def test_launcher_prints_a_line_that_a_rank_writes_in_two_pieces_as_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PIECES)
    options = ["--nproc-per-node=1", "--master-port=0", "--tee=3", f"--log-dir={tmp_path / 'logs'}"]
    done = subprocess.run(
        [sys.executable, "-m", "ddp_agent.launcher.torchrun", *options, str(script)],
        capture_output=True, text=True, check=False,
        env=os.environ | {Env.ATTEMPT: "1", FAILURE_FILE_ENV: str(tmp_path / "failure")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert next(line for line in done.stdout.splitlines() if "e" in line).endswith("begin end")
