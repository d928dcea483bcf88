"""Tests of initial weights from a file or from another run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ddp_trainer.errors import InputError
from ddp_trainer.run.saving import save
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import opened, trained

TASK = "--task=sample_tasks:build"


def saved_weights(folder: Path) -> Path:
    run = trained(global_batch=10, checkpoint={"directory": str(folder)})
    save(run)
    return max(folder.glob("step-*"))


@pytest.mark.slow
def test_run_starts_with_the_weights_of_init_from(tmp_path: Path) -> None:
    checkpoint = saved_weights(tmp_path / "first")
    given = load_file(checkpoint / "model.safetensors")
    for source in (tmp_path / "first", checkpoint, checkpoint / "model.safetensors"):
        run = opened(init_from=str(source))
        assert run.position.step == 0
        assert all(value.equal(given[key]) for key, value in run.learner.model.state_dict().items())
        assert not run.learner.optimizer.state_dict()["state"][0]["momentum_buffer"].any()


@pytest.mark.slow
def test_error_of_init_from_names_the_weights_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = load_file(saved_weights(tmp_path) / "model.safetensors")
    given["head.bias"] = torch.zeros(7)
    given["extra"] = given.pop("head.weight")
    file = tmp_path / "given.safetensors"
    save_file(given, file)
    sentence = (
        f"init_from {file}: 4 tensors fit, 1 missing in the file (head.weight),"
        " 1 unknown to the model (extra), 1 of another shape (head.bias)"
    )
    with pytest.raises(InputError) as caught:
        opened(init_from=str(file))
    assert str(caught.value) == f"config: {sentence}"
    run = opened(init_from=str(file), init_strict=False)
    assert run.learner.model.state_dict()["inner.weight"].equal(given["inner.weight"])
    assert sentence in capsys.readouterr().out


@pytest.mark.slow
def test_every_rank_exits_if_init_from_holds_no_weights(launcher: Launcher, tmp_path: Path) -> None:
    gang = launcher.train(TASK, f"--init_from={tmp_path / 'none'}", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0) == (
        f"config: init_from: {tmp_path / 'none'} is no file of weights, no checkpoint and no DCP"
        " folder\n"
    )
    (tmp_path / "text").write_text("no tensors")
    gang = launcher.train(TASK, f"--init_from={tmp_path / 'text'}", world=2)
    assert gang.wait() == [2, 2]
    assert f"init_from: {tmp_path / 'text'} is no file of weights: its header" in gang.err(0)


@pytest.mark.slow
def test_checkpoint_of_the_run_takes_precedence_over_init_from(tmp_path: Path) -> None:
    other = saved_weights(tmp_path / "other")
    run = trained(seed=1, global_batch=10, checkpoint={"directory": str(tmp_path / "run")})
    save(run)
    settings: dict[str, Any] = {"checkpoint": {"directory": str(tmp_path / "run")}, "epochs": 2}
    resumed = opened(seed=1, global_batch=10, init_from=str(other), **settings)
    assert resumed.position.step == run.position.step
    own = run.learner.model.state_dict()
    assert all(own[key].equal(v) for key, v in resumed.learner.model.state_dict().items())
