"""Optional members of a task: its hook, its state in checkpoints, and the parts of its loss."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.totals import PLACES, LossParts
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import roll_back, save
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import Weighted, check_task, stateful
from ddp_trainer.train import close, loop
from ddp_wire.activity import Activity, read_activities
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import distance, opened, trained
from tests.trainer.sample_tasks import FullTask, ProbeTask

TEACHER = "sample_tasks:build_teacher"
CPU = torch.device("cpu")


def teacher(run: Run) -> Any:
    return run.task


def events(capsys: pytest.CaptureFixture[str], kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [event for event in found if event["event"] == kind]


@pytest.mark.slow
def test_hook_after_update_runs_for_every_update_and_its_state_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"global_batch": 10, "max_steps": 8}
    settings["schedule"] = {"name": "constant", "warmup_steps": 0}
    whole = trained(TEACHER, **settings)
    directory = {"checkpoint": {"directory": str(tmp_path)}}
    first = trained(TEACHER, **settings | directory | {"max_steps": 3})
    save(first, required=True)
    second = opened(TEACHER, **settings | directory)
    assert teacher(second).steps == [1, 2, 3]
    assert teacher(second).extra["codes"].dtype == torch.int16
    resumed = trained(TEACHER, **settings | directory)
    assert teacher(resumed).steps == teacher(whole).steps == list(range(1, 9))
    for name in ("model", "teacher"):
        pairs = zip(
            getattr(resumed.task, name).parameters(),
            getattr(whole.task, name).parameters(),
            strict=True,
        )
        assert all(one.equal(other) for one, other in pairs)
    path = tmp_path / "step-00000003.attempt-0"
    document = json.loads((path / "task.json").read_text())
    assert document["steps"] == [1, 2, 3]
    assert load_file(path / "task.safetensors").keys() >= {"teacher/head.weight", "extra/codes"}
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert {"task.json", "task.safetensors"} <= manifest["files"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "fsdp2"])
def test_hook_after_update_reads_and_changes_whole_weights_with_each_strategy(
    launcher: Launcher, tmp_path: Path, strategy: str
) -> None:
    arguments = ["--task=sample_tasks:build_hook", "--global_batch=10", "--max_steps=6"]
    arguments += ["--checkpoint.every_steps=2", "--optimizer.name=sgd"]
    arguments += ["--schedule.name=constant", "--schedule.warmup_steps=0"]
    gangs = {}
    for name, world, extra in (("one", 1, []), ("two", 2, [f"--parallel.strategy={strategy}"])):
        folder = f"--checkpoint.directory={tmp_path / name}"
        gangs[name] = launcher.train(*arguments, folder, *extra, world=world)
    for gang in gangs.values():
        assert set(gang.wait()) == {0}, gang.err(0)
    for file in ("model.safetensors", "task.safetensors"):
        one, two = (load_file(max((tmp_path / n).glob("step-*")) / file) for n in gangs)
        assert all(one[key].allclose(two[key], atol=1e-6, rtol=0) for key in one), file
        assert file == "task.safetensors" or max(t.abs().max() for t in one.values()) == 0.25


def test_hook_after_update_sees_exact_weights_when_fsdp2_gathers_bf16(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = [f"--task={TEACHER}", "--precision=bf16", "--parallel.strategy=fsdp2"]
    arguments += ["--global_batch=10", "--max_steps=3", f"--checkpoint.directory={tmp_path}"]
    gang = launcher.train(*arguments, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    newest = max(tmp_path.glob("step-*"))
    for file, prefix in (("model.safetensors", ""), ("task.safetensors", "teacher/")):
        weight = load_file(newest / file)[f"{prefix}head.weight"]
        assert not weight.equal(weight.bfloat16().float()), file


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_collate_that_reads_the_task_gives_a_resumed_run_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, workers: int
) -> None:
    settings: dict[str, Any] = {"global_batch": 10, "max_steps": 4, "data": {"workers": workers}}
    settings["task"] = {"eval_samples": 0}
    whole = trained("collate_tasks:build", **settings)
    directory = {"checkpoint": {"directory": str(tmp_path)}}
    first = trained("collate_tasks:build", **settings | directory | {"max_steps": 2})
    save(first, required=True)
    resumed = trained("collate_tasks:build", **settings | directory)
    assert distance(whole.learner.model, resumed.learner.model) == 0.0
    batches = 0 if workers else 4
    for run in (whole, resumed):
        assert teacher(run).state_dict() == {"factor": 5.0, "batches": batches}


MEMBERS = {
    "optimizer": {Activity.STARTING},
    "load_state_dict": {Activity.STARTING, Activity.CHECKPOINT},
    "collate": {Activity.STARTING, Activity.DATA, Activity.EVALUATION},
    "loss": {Activity.STARTING, Activity.FORWARD},
    "after_update": {Activity.HOOK},
    "metrics": {Activity.EVALUATION},
    "state_dict": {Activity.STARTING, Activity.CHECKPOINT},
}
"""Activities that the agent may see while a rank runs a member of the task."""


@pytest.mark.slow
def test_activity_shows_which_member_of_the_task_a_rank_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[Activity]] = {name: set() for name in MEMBERS}
    beats = tmp_path / "beats"

    def watched(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen[name].add(read_activities(beats)[0].activity)
            return member(*arguments)

        return call

    for name in MEMBERS:
        monkeypatch.setattr(FullTask, name, watched(name, getattr(FullTask, name)))
    checkpoint = {"directory": str(tmp_path / "run"), "every_steps": 2}
    settings: dict[str, Any] = {"checkpoint": checkpoint, "nonfinite": {"policy": "rollback"}}
    settings |= {"global_batch": 10, "max_steps": 4, "device": "cpu", "data": {"workers": 0}}
    for last in (2, 4):
        config = resolve(settings | {"max_steps": last})
        request = RunRequest("tests.trainer.sample_tasks:build_full", config)
        heartbeats = HeartbeatWriter(beats, Ranks(), 0)
        run = open_run(request, Ranks(), StopFlag(), heartbeats)
        loop(run)
        close(run, stopped=False)
    roll_back(run)
    assert seen == MEMBERS


@pytest.mark.slow
def test_rollback_restores_the_state_of_the_task(tmp_path: Path) -> None:
    run = trained(TEACHER, max_steps=2, checkpoint={"directory": str(tmp_path)})
    save(run, required=True)
    teacher(run).steps = []
    roll_back(run)
    assert teacher(run).steps == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            "sample_tasks:build",
            TEACHER,
            "the checkpoint has no state of the task, so the task keeps its initial state",
        ),
        (
            TEACHER,
            "sample_tasks:build",
            "the checkpoint has state of the task, but the task has no load_state_dict for it",
        ),
    ],
)
def test_task_state_missing_in_checkpoint_or_task_causes_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, sentence: str
) -> None:
    settings = {"max_steps": 1, "checkpoint": {"directory": str(tmp_path)}}
    save(trained(before, **settings), required=True)
    capsys.readouterr()
    opened(after, **settings)
    assert [event["message"] for event in events(capsys, "warning")] == [sentence]


def test_state_that_cannot_be_saved_is_refused_before_the_training() -> None:
    with pytest.raises(InputError) as error:
        opened("sample_tasks:build_unsaveable")
    assert str(error.value) == (
        'checkpoint: "extra/path" in the state of the task must be a tensor or a JSON value, not'
        " PosixPath"
    )


def test_task_state_needs_both_state_dict_and_load_state_dict() -> None:
    task = ProbeTask.__new__(ProbeTask)
    task.model, task.train_data, task.eval_data = nn.Linear(1, 1), [1], None
    task.state_dict = dict  # type: ignore[attr-defined]
    with pytest.raises(InputError, match='has "state_dict", so it must have "load_state_dict" too'):
        check_task(task, "here:build")


def test_task_that_is_a_module_has_no_state_besides_its_model() -> None:
    class OwnState(nn.Module):
        def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
            return {}

    assert stateful(nn.Linear(1, 1)) is None
    assert stateful(OwnState()) is not None


@pytest.mark.slow
def test_parts_of_the_loss_are_averaged_like_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"global_batch": 8, "micro_batch": 2, "max_steps": 6}
    run = trained(TEACHER, **settings, log={"every_steps": 3}, task={"uneven": True})
    evaluate_run(run)
    found = events(capsys, "progress")
    assert [event["step"] for event in found] == [3, 6]
    for event in found:
        parts = event["loss_parts"]
        assert list(parts) == ["hard", "soft"]
        assert parts["hard"] + 0.5 * parts["soft"] == pytest.approx(event["loss"], rel=1e-4)
        assert parts["soft"] > 0.0
    sent = run.report._progress.loss_parts
    assert sent == pytest.approx(found[-1]["loss_parts"], rel=1e-4)
    assert list(run.metrics) == ["hard", "loss", "soft"]
    total = run.metrics["hard"] + 0.5 * run.metrics["soft"]
    assert total == pytest.approx(run.metrics["loss"], rel=1e-5)


def host_syncs(path: str) -> int:
    run = opened(path, max_steps=4)
    updates = by_update(run.train_loader)
    for step in range(2):
        train_step(run.learner, next(updates), step, 1.0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train_step(run.learner, next(updates), 2, 1.0)
    return sum(event.name == "aten::_local_scalar_dense" for event in profiler.events() or [])


def test_parts_of_the_loss_cause_no_host_sync() -> None:
    assert host_syncs(TEACHER) == host_syncs("sample_tasks:build")


def test_names_of_loss_parts_must_stay_the_same() -> None:
    parts, one = LossParts(CPU), torch.tensor(1.0)
    parts.add({"b": one, "a": one}, one)
    with pytest.raises(InputError) as error:
        parts.add({"a": one, "c": one}, one)
    assert str(error.value) == (
        "task: the parts of the loss must have the same names for every batch, first ['a', 'b'],"
        " now ['a', 'c']"
    )


def test_report_clears_the_sums_of_loss_parts() -> None:
    parts = LossParts(CPU)
    assert parts.read().tolist() == [0.0] * PLACES
    for _ in range(2):
        parts.add({"b": torch.tensor(6.0), "a": torch.tensor(2.0)}, torch.tensor(8.0))
        parts.add_update(torch.tensor(0.0))
    assert parts.means(parts.read().tolist(), 4.0, 1) == {"a": 1.0, "b": 3.0}
    assert parts.means(parts.read().tolist(), 4.0, 1) == {"a": 0.0, "b": 0.0}


def test_parts_of_a_skipped_loss_are_left_out() -> None:
    parts, nan = LossParts(CPU), torch.tensor(float("nan"))
    for loss, nonfinite in ((torch.tensor(2.0), 0.0), (nan, 1.0), (torch.tensor(2.0), 1.0)):
        parts.add({"a": loss}, loss)
        parts.add_update(torch.tensor(nonfinite))
    assert parts.means(parts.read().tolist(), 2.0, 1) == {"a": 2.0}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"a": 1.0}, 'task: part "a" of the loss must be a scalar tensor'),
        ({"a": torch.zeros(2)}, 'task: part "a" of the loss must be a scalar tensor'),
        (dict.fromkeys(map(str, range(17)), 1.0), "task: loss must have at most 16 parts, not 17"),
    ],
)
def test_invalid_loss_parts_are_refused(parts: dict[str, Any], sentence: str) -> None:
    run = opened()
    run.learner.objective.loss = lambda *_: Weighted(  # type: ignore[assignment]
        torch.zeros((), requires_grad=True), 1, parts
    )
    with pytest.raises(InputError, match=sentence):
        train_step(run.learner, next(by_update(run.train_loader)), 0, 1.0)


def test_two_ranks_report_loss_parts_and_resume_the_task_state(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = [f"--task={TEACHER}", "--global_batch=10", "--log.every_steps=2"]
    arguments += ["--task.uneven=true", "--schedule.warmup_steps=0", "--schedule.name=constant"]
    save = [f"--checkpoint.directory={tmp_path}"]
    one = launcher.train(*arguments, "--max_steps=4", world=1)
    first = launcher.train(*arguments, *save, "--max_steps=2", world=2)
    assert first.wait() == [0, 0], first.err(0)
    second = launcher.train(*arguments, *save, "--max_steps=4", world=2)
    assert second.wait() == [0, 0], second.err(0)
    assert one.wait() == [0]
    expected = one.events("progress")
    found = [*first.events("progress"), *second.events("progress")]
    assert [event["step"] for event in found] == [2, 4]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["loss_parts"] == pytest.approx(theirs["loss_parts"], rel=1e-3)


@pytest.mark.slow
def test_different_loss_parts_on_two_ranks_end_both_ranks(launcher: Launcher) -> None:
    arguments = ["--task=sample_tasks:build_teacher_by_rank", "--max_steps=2", "--epochs=1"]
    gang = launcher.train(*arguments, "--log.every_steps=1", "--eval_every_steps=9", world=2)
    assert gang.wait() == [2, 2], gang.err(0)
    assert gang.err(0) == (
        "task: the parts of the loss must have the same names on every rank, on this one"
        " ['hard', 'of rank 0', 'soft']\n"
    )
