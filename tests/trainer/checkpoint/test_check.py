"""Tests of the command that checks one checkpoint, which imports no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.__main__ import main
from tests.trainer.checkpoint.test_manager import saved


def test_check_accepts_a_complete_checkpoint_and_names_a_changed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10)
    (checkpoint,) = tmp_path.glob("step-*")
    assert main([str(checkpoint)]) == 0
    model = checkpoint / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    assert main([str(checkpoint)]) == 1
    assert capsys.readouterr().err.startswith(f"checkpoint: {checkpoint} is not usable: ")
    assert main([str(tmp_path / "none")]) == 1
    assert main([]) == 2


def test_checkpoint_check_imports_no_torch() -> None:
    program = "import ddp_trainer.checkpoint.__main__, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
