"""Tests of the commands of `make test`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.support import wait_until
from tests.harness.ending import INTERRUPTED
from tools import run_all
from tools.run_all import run_beside

SCRIPT = """
import sys
from tests.harness import ending
from tools.run_all import run_beside

first, second = [["sh", "-c", text] for text in sys.argv[1:]]
ending.script(lambda: sys.exit(run_beside(first, [second], 2)))
"""


@pytest.mark.parametrize(
    ("ends", "code"),
    [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 4, 0), 4), ((0, 0, 2), 2), ((3, 4, 2), 3)],
)
def test_run_of_several_commands_fails_if_one_of_them_fails(
    ends: tuple[int, int, int], code: int, tmp_path: Path
) -> None:
    """The second command runs in parallel to the first and then the third command."""
    waits = f"while [ ! -e {tmp_path}/b ]; do sleep 0.05; done"
    waits_longer = f"touch {tmp_path}/b; while [ ! -e {tmp_path}/c ]; do sleep 0.05; done"
    scripts = [f"{waits}; exit {ends[0]}", f"{waits_longer}; exit {ends[1]}"]
    scripts.append(f"touch {tmp_path}/c; exit {ends[2]}")
    first, *others = [["sh", "-c", script] for script in scripts]
    assert run_beside(first, others, 2) == code


def test_output_of_parallel_commands_follows_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    waits = f"while [ ! -e {tmp_path}/c ]; do sleep 0.05; done; echo a"
    scripts = [waits, "echo b", f"echo c; touch {tmp_path}/c"]
    first, *others = [["sh", "-c", script] for script in scripts]
    assert run_beside(first, others, 2) == 0
    assert capfd.readouterr().out == "a\nb\nc\n"


def test_output_of_an_ended_command_is_whole_before_the_next_one_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts = [
        "echo a; sleep 0.3; echo end of a",
        f"while [ ! -e {tmp_path}/c ]; do sleep 0.05; done; echo b",
    ]
    scripts.append(f"echo c; sleep 0.3; touch {tmp_path}/c")
    first, *others = [["sh", "-c", script] for script in scripts]
    assert run_beside(first, others, 2) == 0
    assert capfd.readouterr().out == "a\nend of a\nc\nb\n"


def test_reason_of_a_failure_is_repeated_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    first = ["sh", "-c", "seq 1 50; echo FAILED tests/test_a.py; exit 3"]
    assert run_beside(first, [["sh", "-c", "sleep 0.3; echo passed"]], 2) == 3
    before, after = capfd.readouterr().out.split("\nfailed with exit code 3: sh -c ")
    assert before.endswith("FAILED tests/test_a.py\npassed\n")
    assert after.splitlines()[-2:] == ["50", "FAILED tests/test_a.py"]
    assert len(after.splitlines()) == 21


@pytest.mark.slow
def test_number_of_commands_at_a_time_is_bounded(tmp_path: Path) -> None:
    count = f"mkdir {tmp_path}/$$ && ls {tmp_path} | grep -v max | wc -l >> {tmp_path}/max"
    command = ["sh", "-c", f"{count}; sleep 0.2; rmdir {tmp_path}/$$"]
    assert run_beside(command, [command] * 6, 3) == 0
    assert max(map(int, (tmp_path / "max").read_text().split())) == 3


def test_terminated_run_ends_all_its_commands(tmp_path: Path) -> None:
    clean = "trap 'touch {0}.cleaned; exit' TERM; touch {0}.started; while :; do sleep 0.05; done"
    commands = [clean.format(tmp_path / name) for name in "ab"]
    with subprocess.Popen([sys.executable, "-c", SCRIPT, *commands]) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.started"))) == 2, "both have started")
        os.kill(run.pid, signal.SIGTERM)
    assert run.returncode == INTERRUPTED
    assert sorted(path.name for path in tmp_path.glob("*.cleaned")) == ["a.cleaned", "b.cleaned"]


def selects(command: list[str], file: str) -> bool:
    """Return whether a command of pytest runs the tests of a file."""
    ignored = [word.removeprefix("--ignore=") for word in command if word.startswith("--ignore=")]
    folders = [word for word in command if word.startswith("tests/")] or ["tests"]
    return file.startswith(tuple(f"{folder}/" for folder in folders)) and not file.startswith(
        tuple(f"{folder}/" for folder in ignored)
    )


def test_each_test_belongs_to_one_part_of_make_test() -> None:
    parts = [run_all.pytest(*run_all.CLUSTER), *run_all.parts()]
    root = Path(__file__).parents[2]
    files = [str(file.relative_to(root)) for file in (root / "tests").rglob("test_*.py")]
    assert len(files) > 300
    assert {file for file in files if sum(selects(part, file) for part in parts) != 1} == set()
    assert all(any(selects(part, file) for file in files) for part in parts)
