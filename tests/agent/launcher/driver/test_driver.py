"""The standby under torch's CUDA build makes no call of the driver, so its forks can use the GPUs.

There is no GPU here: a recording `libcuda.so.1` takes the place of the driver, and NVML finds as
many GPUs as a test wants. The first run installs torch's CUDA build, which has gigabytes.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import newest_torch
from tests.harness.paths import REPOSITORY

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver's library is Linux'"),
]

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """Interpreter with torch's CUDA build."""
    return newest_torch.interpreter()


@dataclass
class Driver:
    """The recording driver in a folder, and the interpreter that loads it."""

    python: Path
    folder: Path

    def run(self, *command: str, gpus: int, path: Path | None = None) -> tuple[str, list[str]]:
        """Run Python with a number of GPUs. Return its output and the lines of the record."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        paths = [str(path)] if path is not None else []
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.folder),
            "PYTHONPATH": os.pathsep.join([*paths, str(REPOSITORY / "trainer")]),
            "DRIVER_CALLS": str(calls),
            "DRIVER_GPUS": str(gpus),
            "DDP_GPUS_PER_NODE": "2",
        }
        done = subprocess.run(
            [self.python, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, calls.read_text().splitlines() if calls.exists() else []

    def probe(self, home: Path, *, gpus: int, path: Path | None = None) -> tuple[Any, list[str]]:
        """Fork one attempt from a standby. Return the outcome and the recorded driver calls."""
        output, calls = self.run(str(HERE / "probe.py"), str(home), gpus=gpus, path=path)
        return json.loads(output.splitlines()[-1]), calls


@pytest.fixture(scope="session")
def driver(cuda_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / name)]
        subprocess.run([*command, str(HERE / "stub.c"), "-ldl"], check=True)
    return Driver(cuda_python, folder)


def test_call_of_torch_to_the_cuda_driver_is_recorded(driver: Driver) -> None:
    """Without this test an empty record would prove nothing."""
    script = "import torch; print(torch._C._cuda_getDeviceCount())"
    output, calls = driver.run("-c", script, gpus=0)
    assert output == "0\n"
    assert any(line.endswith(" cuInit") for line in calls)


def test_standby_makes_no_driver_call_and_its_forked_ranks_do(
    driver: Driver, tmp_path: Path
) -> None:
    outcome, calls = driver.probe(tmp_path, gpus=2)
    assert outcome["code"] == 0
    ranks = outcome["ranks"]
    callers = {str(one["pid"]) for one in ranks}
    assert {line.split()[0] for line in calls} == callers
    assert {line.split()[0] for line in calls if line.endswith(" cuInit")} == callers
    assert not any(one["bad_fork"] for one in ranks)
    assert [one["nvml_check"] for one in ranks] == [None, None]


def test_fork_that_sees_too_few_gpus_is_refused(driver: Driver, tmp_path: Path) -> None:
    outcome, calls = driver.probe(tmp_path, gpus=1)
    assert outcome["unusable"] == "NVML finds 1 of the pod's 2 GPUs"
    assert calls == []


def test_fork_of_a_standby_that_has_initialised_cuda_is_refused(
    driver: Driver, tmp_path: Path
) -> None:
    """An import that initialises the driver, as a library might, makes CUDA unusable in forks."""
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text("import torch\ntorch._C._cuda_getDeviceCount()\n")
    outcome, calls = driver.probe(tmp_path, gpus=2, path=tmp_path)
    assert outcome["unusable"] == "an import has initialised CUDA in the standby"
    assert {line.split()[0] for line in calls} == {str(outcome["standby"])}
