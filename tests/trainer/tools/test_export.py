"""Tests of the command `export`."""

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddp_trainer.checkpoint import format as format_
from ddp_trainer.errors import InputError, VolumeError
from ddp_trainer.tools.export.run import export
from ddp_trainer.tools.export.source import find_checkpoint
from ddp_trainer.tools.export.tracing import CallArguments, TracedModel
from ddp_trainer.tools.export.writers import WRITERS
from tests.trainer.checkpoint.test_manager import saved
from tests.trainer.checkpoint.test_planted_checkpoints import rewrite
from tests.trainer.checkpoint.test_volume_errors import Forbidden
from tests.trainer.rank_processes import Gang, Launcher

TASKS = {
    "digits": ["--task=ddp_trainer.tasks.miniresnet:build", "--task.width=8"],
    "own": ["--task=sample_tasks:build_own"],
    "tied": ["--task=sample_tasks:build", "--task.tied=true", "--task.batch_norm=true"],
    "gpt": [
        "--task=ddp_trainer.tasks.gpt:build",
        "--task.width=16",
        "--task.layers=1",
        "--task.max_chars=4000",
    ],
}


def trained(launcher: Launcher, folder: Path, *arguments: str) -> Path:
    extra = ["--max_steps=3", f"--checkpoint.directory={folder / 'run'}"]
    assert launcher.train(*arguments, *extra, world=None).wait() == [0]
    return folder / "run"


def exported(launcher: Launcher, folder: Path, *arguments: str) -> Gang:
    command = ["export", *arguments, f"--checkpoint={folder / 'run'}"]
    gang = launcher.call("rank_processes:run_command", command, world=None)
    gang.wait()
    return gang


SLOW = {"digits", "gpt"}
"""Tasks whose models take seconds to trace."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in TASKS]
)
def test_exported_files_compute_the_outputs_of_the_model(
    launcher: Launcher, tmp_path: Path, name: str
) -> None:
    run = trained(launcher, tmp_path, *TASKS[name])
    before = sorted(path.name for path in run.rglob("*"))
    # The checkpoint knows its task and the settings of the task.
    stated = TASKS[name] if name == "digits" else []
    gang = exported(launcher, tmp_path, *stated, f"--output={tmp_path / 'out'}")
    assert gang.wait() == [0], gang.err(0)
    assert sorted(path.name for path in run.rglob("*")) == before
    files = {Path(event["file"]).name: event for event in gang.events("export")}
    assert files.keys() == {"model.safetensors", "model.pt2"}
    assert all(event["same"] for event in files.values())
    assert files["model.safetensors"]["largest_difference"] == 0
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["step"] == 3
    assert metadata["inputs"][0]["shape"][0] == "batch"
    saved = load_file(max(run.glob("step-*")) / "model.safetensors")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(saved[key].equal(written[key]) for key in saved.keys() | written.keys())


class Doubler(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_export_reports_a_file_with_other_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, 3)
    traced = TracedModel(Doubler(), CallArguments((x,)), CallArguments((x[:1],)))

    def write_wrong_file(*_: Any) -> Any:
        return "model.bad", lambda x: x * 2.01

    monkeypatch.setitem(WRITERS, "torch", write_wrong_file)
    result = export(traced, ["torch"], tmp_path / "out", {})
    assert result.failed == ["model.bad"]
    assert result.differences["model.bad"] == pytest.approx(0.01, rel=1e-3)


class Repeated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = torch.nn.Linear(3, 3)
        self.blocks = torch.nn.Sequential(block, torch.nn.Tanh(), block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.blocks(x)
        return found


def test_model_that_lists_a_module_twice_is_exported_in_all_formats(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    traced = TracedModel(Repeated().eval(), CallArguments((x,)), CallArguments((x[:1],)))
    result = export(traced, ["safetensors", "torch"], tmp_path / "out", {})
    assert result.differences == {"model.safetensors": 0.0, "model.pt2": 0.0}
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {
        "blocks.0.weight",
        "blocks.0.bias",
    }


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return x * factor if x.sum() > 0 else x


def test_model_that_torch_cannot_trace_is_reported_in_one_sentence(tmp_path: Path) -> None:
    call = CallArguments((torch.ones(2, 3),), {"factor": torch.full((2, 1), 3.0)})
    traced = TracedModel(Scaled(), call, call)
    sentence = (
        rf"export: torch\.export cannot trace the model at {re.escape(__file__)}:\d+ \(return"
        r" x \* factor if x\.sum\(\) > 0 else x\), \w+: .*; --formats=safetensors needs no trace"
    )
    with pytest.raises(InputError, match=sentence) as raised:
        export(traced, ["safetensors", "torch"], tmp_path / "out", {})
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    result = export(traced, ["safetensors"], tmp_path / "out", {})
    assert result.differences == {"model.safetensors": 0.0}
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["named_inputs"]["factor"]["shape"] == ["batch", 1]


@pytest.mark.slow
def test_onnx_file_computes_the_outputs_of_the_model(launcher: Launcher, tmp_path: Path) -> None:
    trained(launcher, tmp_path, *TASKS["own"])
    arguments = [*TASKS["own"], "--formats=onnx", f"--output={tmp_path / 'out'}"]
    gang = exported(launcher, tmp_path, *arguments)
    assert gang.wait() == [0], gang.err(0)
    (event,) = gang.events("export")
    assert event["same"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--formats=pickle"],
            'export: --formats must be from safetensors, torch, onnx, not "pickle"',
        ),
        (
            ["--checkpoint={0}/none"],
            "export: {0}/none holds no complete checkpoint (none: it is missing",
        ),
        (["--output={0}"], "export: {0} already exists"),
        (["--task.tied=true"], 'checkpoint: tensor "again.weight" is not in the model;'),
    ],
)
def test_export_reports_a_mistake_in_one_sentence(
    launcher: Launcher, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    trained(launcher, tmp_path, *TASKS["own"])
    defaults = [*TASKS["own"], f"--checkpoint={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]
    command = ["export", *defaults, *(argument.format(tmp_path) for argument in arguments)]
    gang = launcher.call("rank_processes:run_command", command, world=None)
    assert gang.wait() == [2]
    assert gang.err(0).startswith(sentence.format(tmp_path))
    assert gang.err(0).count("\n") == 1


def test_export_names_the_missing_packages_for_onnx(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ddp_trainer.tools.export.run.find_spec", lambda _: None)
    call = CallArguments((torch.ones(1, 2),))
    traced = TracedModel(Doubler(), call, call)
    with pytest.raises(InputError, match="onnx needs onnx, onnxscript, onnxruntime"):
        export(traced, ["onnx"], tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []


def test_read_error_never_exports_an_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    waits: list[float] = []

    def fail(path: Path) -> None:
        tried.append(path.name)
        raise OSError(errno.EIO, "Input/output error")

    for step in (10, 20):
        (tmp_path / f"step-000000{step}.attempt-1").mkdir()
    monkeypatch.setattr("ddp_trainer.tools.export.source.verify_contents", fail)
    with pytest.raises(VolumeError, match=r"export: cannot read .*step-00000020"):
        find_checkpoint(tmp_path, waits.append)
    assert set(tried) == {"step-00000020.attempt-1"}
    assert len(waits) == 4


def test_export_skips_a_checkpoint_that_no_trainer_wrote(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    rewrite("state.json", b'{"step": 20}')(tmp_path)
    assert find_checkpoint(tmp_path).name == "step-00000010.attempt-1"


def test_missing_rights_never_export_an_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20)
    monkeypatch.setattr(format_, "crc32_of", Forbidden(format_.crc32_of, 20))
    with pytest.raises(InputError, match=r"step-00000020.*: it cannot be read \(Permission denied"):
        find_checkpoint(tmp_path)
