"""The command line of `ddp-trainer`: quick help, and one parser for each command."""

import argparse
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ddp_trainer.commands.main import COMMANDS


def test_help_loads_neither_torch_nor_the_models_of_the_settings() -> None:
    program = (
        "import sys\n"
        "from ddp_trainer.commands.main import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print('loaded', *sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = set(shown.splitlines()[-1].split())
    assert "loaded" in loaded
    assert {"torch", "numpy", "pydantic", "ddp_trainer.config"} & loaded == set()


def test_each_command_has_its_parser_and_the_same_line_of_help() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for name in COMMANDS:
        import_module(f"ddp_trainer.commands.{name}").add_to(commands)
    shown = {choice.dest: choice.help for choice in commands._choices_actions}
    assert shown == COMMANDS


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_closes_the_output_early_is_no_error(unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-m", "ddp_trainer", "inspect", str(tmp_path)]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        ended = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
