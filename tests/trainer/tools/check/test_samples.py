"""Tests of the command `check`."""

from pathlib import Path

import pytest

from tests.trainer.rank_processes import Launcher
from tests.trainer.tasks.test_tasks import write_cifar_files


def check(launcher: Launcher, task: str, *arguments: str) -> tuple[int | None, str, list[dict]]:  # type: ignore[type-arg]
    path = task if ":" in task else f"sample_tasks:{task}"
    command = ["check", f"--task={path}", *arguments]
    gang = launcher.call("rank_processes:run_command", command, world=None)
    (code,) = gang.wait()
    return code, gang.err(0), gang.events("check")


def test_check_describes_valid_data(launcher: Launcher) -> None:
    code, err, found = check(launcher, "build", "--world-size=4")
    assert (code, err) == (0, "")
    assert [(f["data"], f["size"], f["samples"]) for f in found] == [
        ("train_data", 50, 50),
        ("eval_data", 11, 11),
    ]
    assert found[0]["columns"]["[1]"] == "int64 () from 0 to 2"
    assert found[0]["columns"]["[0]"].startswith("float32 (6,) from -")
    assert 0.5 < found[0]["loss"] < 2


@pytest.mark.parametrize("name", ["miniresnet", "gpt"])
def test_check_accepts_the_bundled_tasks(launcher: Launcher, name: str) -> None:
    code, err, found = check(launcher, f"ddp_trainer.tasks.{name}:build", "--samples=64")
    assert (code, err) == (0, "")
    assert [f["samples"] for f in found] == [64, 64]


def test_check_names_a_wrong_label_in_data_that_return_whole_batches(
    launcher: Launcher, tmp_path: Path
) -> None:
    write_cifar_files(tmp_path, images=30)
    file = tmp_path / "data_batch_1.bin"
    records = bytearray(file.read_bytes())
    records[17 * 3073] = 12
    file.write_bytes(records)
    cifar = ["--task.data=cifar10", f"--task.directory={tmp_path}"]
    code, err, _ = check(launcher, "ddp_trainer.tasks.miniresnet:build", *cifar)
    assert (code, err) == (2, "check: train_data[17]: IndexError: Target 12 is out of bounds.\n")


def test_check_reads_the_requested_number_of_samples_of_a_stream(launcher: Launcher) -> None:
    code, _, found = check(launcher, "build_stream", "--samples=7", "--max_steps=1")
    assert (code, [f["samples"] for f in found]) == (0, [7, 7])


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        (
            "build_bad_sample",
            ["--task.bad_sample=label"],
            "check: train_data[17]: IndexError: Target 7 is",
        ),
        (
            "build_bad_sample",
            ["--task.bad_sample=shape"],
            "check: train_data[17][0] is float32 (5,), but the first sample has float32 (6,)",
        ),
        (
            "build_bad_sample",
            ["--task.bad_sample=dtype"],
            "check: train_data[17][0] is float64 (6,), but the first sample has float32 (6,)",
        ),
        (
            "build_bad_sample",
            ["--task.bad_sample=nan"],
            "check: train_data[17][0] has values that are not finite",
        ),
        (
            "build_bad_sample",
            ["--task.bad_sample=file"],
            "check: train_data[17]: FileNotFoundError: no ",
        ),
        ("build", ["--global_batch=3", "--world-size=4"], "config: global_batch 3 is less than"),
        ("build", ["--epoch=3"], 'config: unknown key "epoch"; did you mean "epochs"?'),
        ("build", ["--samples=0"], "check: --samples must be 1 or more, not 0"),
        ("build", ["--task.bad_loss=true"], "task: loss must return Weighted(sum, count) with a"),
        ("build_stream", [], 'config: "max_steps" must be stated'),
        (
            "build_stream",
            ["--max_steps=1", "--data.drop_last=true"],
            'config: "data.drop_last" has no effect, because train_data has no length',
        ),
        (
            "build",
            ["--task.batch_norm=true", "--task.samples=193", "--global_batch=16"],
            "check: BatchNorm would normalise a single sample by itself at the end of each epoch",
        ),
    ],
)
def test_check_reports_the_first_mistake_in_one_sentence(
    launcher: Launcher, function: str, arguments: list[str], sentence: str
) -> None:
    code, err, _ = check(launcher, function, *arguments)
    assert code == 2
    assert err.startswith(sentence)
    assert err.count("\n") == 1
