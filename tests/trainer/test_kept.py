"""State that a script keeps in the agent's memory, with the script of its page."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer import report
from ddp_wire.contract import ExitCode
from ddp_wire.records import ask_to_leave
from tests.trainer.rank_processes import Gang, Launcher

PAGE = Path(__file__).parents[2] / "docs" / "use" / "command-reports.md"
BEGIN = "report.progress(step, TOTAL)\n"
BACKWARD = "        loss.backward()\n"
END = "del model, optimizer"
PROBE = """
import json, os, pathlib, signal, time
out, rank = pathlib.Path(os.environ["OUT"]), dist.get_rank()
begun = step
(out / f"begun-{rank}").write_text(str(step))
"""
FAULT = """
        (out / f"step-{rank}").write_text(str(step))
        if rank == 1 and step == begun + 6:
            match os.environ.get("FAULT"):
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raise":
                    raise RuntimeError("the script must fail")
                case "hang":
                    time.sleep(600)
"""
LAST = """
torch.save([bare.state_dict(), optimizer.state_dict()], out / f"end-{rank}")
"""


def script() -> str:
    """Return the script of the page with faults and with files for the test."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (text,) = (each for each in found if "report.kept()" in each)
    for place in (BEGIN, BACKWARD, END, "TOTAL = 1000"):
        assert text.count(place) == 1
    text = text.replace("TOTAL = 1000", "TOTAL = 20").replace(BEGIN, BEGIN + PROBE)
    return str(text.replace(BACKWARD, FAULT + BACKWARD).replace(END, LAST + END))


class Folders:
    def __init__(self, path: Path) -> None:
        self.out, self.records = path / "out", path / "records"
        self.out.mkdir()
        self.records.mkdir()

    def reached(self, rank: int, step: int) -> bool:
        """Return whether a rank has finished so many updates and begun the next one."""
        path = self.out / f"step-{rank}"
        return path.exists() and path.read_text() == str(step)

    def begun(self) -> set[int]:
        return {int(path.read_text()) for path in self.out.glob("begun-*")}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def start(launcher: Launcher, folders: Folders, attempt: int, fault: str = "") -> Gang:
    variables = {"OUT": str(folders.out), "DDP_ATTEMPT": str(attempt), "FAULT": fault}
    if attempt:
        variables["DDP_RECORDS_DIR"] = str(folders.records)
    return launcher.call("resize_probes:run_script", script(), world=2, **variables)


def weights(folders: Folders) -> list[Any]:
    return [torch.load(folders.out / f"end-{rank}") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_script_of_the_page_repeats_no_update_after_the_loss_of_a_rank(
    launcher: Launcher, folders: Folders, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "whole").mkdir()
    undisturbed = Folders(tmp_path / "whole")
    whole = start(launcher, undisturbed, 0)
    for attempt in (1, 2):
        assert 0 not in start(launcher, folders, attempt, fault).wait()
        assert folders.begun() == {6 * (attempt - 1)}
    last = start(launcher, folders, 3)
    assert last.wait() == [0, 0], last.err(0)
    assert folders.begun() == {12}
    assert whole.wait() == [0, 0]
    for one, other in zip(weights(folders), weights(undisturbed), strict=True):
        assert torch.equal(one[0]["weight"], other[0]["weight"])
        moments = [each[1]["state"][0]["momentum_buffer"] for each in (one, other)]
        assert torch.equal(*moments)


@pytest.mark.slow
def test_rank_of_a_script_that_waits_for_a_hung_one_keeps_the_state(
    launcher: Launcher, folders: Folders
) -> None:
    gang = start(launcher, folders, 1, "hang")
    gang.wait_until(lambda: all(folders.reached(rank, 6) for rank in (0, 1)), 60)
    gang.wait_until(lambda: gang.sleeps(1), 60)
    ask_to_leave(folders.records, 1)
    gang.signal(0, signal.SIGTERM)
    gang.processes[0].join(30)
    assert gang.processes[0].exitcode == ExitCode.PREEMPTED
    gang.processes[1].kill()
    last = start(launcher, folders, 2)
    assert last.wait() == [0, 0], last.err(0)
    assert folders.begun() == {6}


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of records of attempt 2, whose only rank is this process."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DDP_RECORDS_DIR", str(tmp_path))
    monkeypatch.setenv("DDP_ATTEMPT", "2")
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


STATE = {"w": torch.arange(3.0), "n": (1, {2: torch.ones(2, dtype=torch.bfloat16)}), "x": None}


def kept_after(error: BaseException, *, inside: bool = False) -> tuple[int, Any] | None:
    """Return what a script keeps that ends by an error after update 8."""
    with pytest.raises(type(error)):
        end(STATE, error, inside=inside)
    return report.kept()


def end(state: Any, error: BaseException, *, inside: bool = False) -> None:
    """Run a script that ends by an error after update 8, or inside the next one."""
    with report.keep(lambda: state, 7):
        with report.update(8):
            pass
        with report.update(9) if inside else nullcontext():
            raise error


def test_state_of_another_job_is_not_used(
    memory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDP_JOB_UID", "one")
    assert kept_after(RuntimeError()) is not None
    monkeypatch.setenv("DDP_JOB_UID", "other")
    assert report.kept() is None
    path = memory / "step-00000008.attempt-2"
    sentence = f"the state in memory at {path} is not used: another job wrote it"
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(report.STOPPED)], ids=repr)
def test_kept_returns_the_state_with_its_step(memory: Path, error: BaseException) -> None:
    found = kept_after(error)
    assert found is not None
    step, state = found
    assert (step, state["x"]) == (8, None)
    assert torch.equal(state["w"], STATE["w"])  # type: ignore[arg-type]
    assert state["n"][1][2].dtype == torch.bfloat16
    assert sorted(path.name for path in memory.glob("step-*")) == [
        "step-00000008.attempt-2",
        "step-00000008.attempt-2.starts",
    ]


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()], ids=repr)
def test_script_that_ends_by_itself_keeps_nothing(memory: Path, error: BaseException) -> None:
    assert kept_after(error) is None
    assert list(memory.iterdir()) == []


def test_state_inside_an_update_is_not_kept(memory: Path) -> None:
    assert kept_after(RuntimeError(), inside=True) is None
    assert list(memory.iterdir()) == []


def test_state_before_the_first_update_of_an_attempt_is_not_kept(memory: Path) -> None:
    with pytest.raises(RuntimeError), report.keep(lambda: STATE, 7):
        raise RuntimeError
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"w": torch.ones(2, device="meta")}, '"w" in the state of the script must be a tensor'),
        ({"path": Path("/")}, '"path" in the state of the script must be a tensor or a JSON value'),
    ],
    ids=["device", "type"],
)
def test_state_that_cannot_be_kept_is_one_warning(
    memory: Path, capsys: pytest.CaptureFixture[str], state: Any, reason: str
) -> None:
    with pytest.raises(RuntimeError):
        end(state, RuntimeError())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: report: the state after update 8 was not kept in memory: ")
    assert reason in line
    assert list(memory.iterdir()) == []


def test_damaged_state_is_not_returned(memory: Path) -> None:
    kept_after(RuntimeError())
    file = memory / "step-00000008.attempt-2" / "task.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert report.kept() is None
    assert list(memory.iterdir()) == []


@pytest.mark.usefixtures("memory")
def test_two_open_contexts_are_refused() -> None:
    second = report.keep(dict, 0)
    with report.keep(dict, 0), pytest.raises(RuntimeError, match="only one keep context"):
        second.__enter__()
    with report.keep(dict, 0):
        pass


def test_outside_of_a_job_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_RECORDS_DIR", raising=False)
    assert kept_after(RuntimeError()) is None
    with report.update(3):
        pass


@pytest.mark.parametrize("first", ["keep", "should_stop"])
def test_request_to_stop_still_reaches_the_script(
    memory: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setenv("DDP_BEATS_DIR", str(memory / "beats"))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    report._reporter.cache_clear()
    report._stop.cache_clear()
    if first == "should_stop":
        assert not report.should_stop()
    with report.keep(dict, 0):
        assert not report.should_stop()
        signal.raise_signal(signal.SIGTERM)
        assert report.should_stop()
    report._stop.cache_clear()
    report._reporter.cache_clear()


def test_signal_without_a_request_ends_the_script_as_before(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = (
        "from ddp_trainer import report\nimport time\n"
        "with report.keep(dict, 0):\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    gang = launcher.call("resize_probes:run_script", source, DDP_RECORDS_DIR=str(tmp_path))
    gang.wait_until((gang.folder / "0.out").exists)
    gang.wait_until(lambda: "ready" in gang.out(0))
    gang.signal(0, signal.SIGTERM)
    assert gang.wait() == [-signal.SIGTERM]


@pytest.mark.usefixtures("memory")
def test_several_ranks_without_a_process_group_get_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_after(RuntimeError())
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert report.kept() is None
    assert "kept must be called after init_process_group" in capsys.readouterr().err


def test_keep_ends_although_a_forked_process_lives(memory: Path) -> None:
    del memory
    state = {"w": torch.zeros(1)}
    with report.keep(lambda: state, 7):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_sigterm_during_the_write_does_not_lose_the_state(memory: Path) -> None:
    def state() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)  # As torchrun does when another rank has failed.
        time.sleep(0)  # The handler runs between two instructions.
        return STATE

    def script() -> None:
        with report.keep(state, 7):
            with report.update(8):
                pass
            raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="peer"):
        script()
    del memory
    found = report.kept()
    assert found is not None
    assert found[0] == 8


def test_update_within_an_update_is_refused_and_keeps_nothing(memory: Path) -> None:
    del memory
    with (
        pytest.raises(RuntimeError, match="only one update context"),
        report.keep(lambda: STATE, 7),
        report.update(8),
        report.update(9),
    ):
        pass
    assert report.kept() is None
