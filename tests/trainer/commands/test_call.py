"""`ddp-trainer call`: one function with the settings of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.commands.main import main
from ddp_wire.contract import Env, ExitCode

MODULE = """
import json, sys

def fetch(config):
    assert "torch" not in sys.modules
    print(json.dumps(config))

def fail(config):
    raise RuntimeError("no such host")
"""


def call(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder with a module `data`."""
    (folder / "data.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "ddp_trainer", "call", *arguments]
    # Tests on another release of torch find the product only there.
    environ = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | variables
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_function_gets_the_config_and_the_directory_of_the_checkpoints(tmp_path: Path) -> None:
    config = json.dumps({"epochs": 3, "task": {"size": 8}})
    given = {Env.CONFIG: config, Env.CHECKPOINT_DIR: "/checkpoints/a"}
    done = call(tmp_path, "data:fetch", **given)
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout) == {
        "epochs": 3,
        "task": {"size": 8},
        "checkpoint": {"directory": "/checkpoints/a"},
    }


def test_failure_of_the_function_is_its_last_line(tmp_path: Path) -> None:
    done = call(tmp_path, "data:fail")
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.splitlines()[-1] == "RuntimeError: no such host"


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("data", 'call: "data" must have the form package.module:function'),
        ("nowhere:fetch", 'call: there is no module "nowhere"'),
        ("json:fetch", 'call: module "json" has no function "fetch"'),
    ],
)
def test_wrong_function_is_one_sentence(
    function: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", function]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.strip() == sentence
