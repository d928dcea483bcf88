"""`ddpjob init`: a manifest from a script or a task, which is valid as it stands."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from ddp_operator.cli.main import main

SCRIPT = "import torch.distributed as dist\ndist.init_process_group()\n# DDP_CHECKPOINT_DIR\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Train_GPT 2.py").write_text(SCRIPT)
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "flowers.py").write_text("def build(cfg, env): ...\n")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["init", *arguments])


def test_script_gets_a_command_and_a_claim_from_its_text() -> None:
    ended = run("Train_GPT 2.py", "--nodes", "2", "--gpus", "8", "-f", "job.yaml")
    assert (ended.exit_code, ended.stdout) == (0, "job.yaml\n")
    assert ended.stderr == "note: ship the script with it: ddpjob submit job.yaml --code .\n"
    document = yaml.safe_load(Path("job.yaml").read_text())
    assert document["metadata"] == {"name": "train-gpt-2"}
    assert document["spec"] == {
        "nodes": 2,
        "gpusPerNode": 8,
        "command": ["python", "/code/Train_GPT 2.py"],
        "checkpoint": {"claimTemplate": {"size": "10Gi"}},
    }
    assert CliRunner().invoke(main, ["validate", "job.yaml"]).exit_code == 0


def test_script_that_neither_distributes_nor_saves_gets_notes() -> None:
    ended = run("plain.py", "--procs", "2")
    assert "checkpoint" not in ended.stdout
    assert "procsPerNode: 2" in ended.stdout
    assert "none of the usual functions of distributed training" in ended.stderr
    assert "each attempt starts from the beginning" in ended.stderr


def test_task_gets_settings_and_says_where_its_module_is() -> None:
    ended = run("flowers:build", "--claim", "shared", "--name", "rose")
    spec = yaml.safe_load(ended.stdout)["spec"]
    assert (spec["task"], spec["checkpoint"]) == ("flowers:build", {"claimName": "shared"})
    assert "ship the module with it: ddpjob submit FILE --code ." in ended.stderr
    assert "my.trees is not in .: the image must have it" in run("my.trees:build").stderr
    assert run("ddp_trainer.tasks.miniresnet:build").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.py"], "none.py: cannot be read: No such file or directory"),
        (["train"], "train: must be a Python script in the folder of the code, or a task"),
        (["../x.py"], "../x.py: must be a Python script in the folder of the code, or a task"),
        (["plain.py", "-f", "plain.py"], "plain.py: exists already"),
        (["plain.py", "--name", "Big"], "metadata.name: must be a DNS label"),
        (["flowers:build", "--claim", "A b"], "spec.checkpoint.claimName: must be the name of a"),
    ],
)
def test_wrong_target_gets_one_sentence(arguments: list[str], sentence: str) -> None:
    ended = run(*arguments)
    assert (ended.exit_code, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert sentence in ended.stderr
