"""Tests of the launcher of ranks."""

import json
import os
from pathlib import Path

from tests.harness.one_gpu import share_one_gpu
from tests.trainer.rank_processes import Launcher

GPUS = "CUDA_VISIBLE_DEVICES"


def print_gpus(_: None) -> int:
    """Print the numbers of the GPUs that this rank may see. None means all."""
    print(json.dumps(os.environ.get(GPUS)))
    return 0


def visible_gpus(launcher: Launcher) -> str | None:
    gang = launcher.call("test_rank_processes:print_gpus", None, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    found: str | None = json.loads(gang.out(1))
    return found


def test_ranks_of_tests_without_a_gpu_mark_see_no_gpu(launcher: Launcher) -> None:
    assert visible_gpus(launcher) == ""


def test_ranks_of_tests_for_gpus_see_them(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, sees_gpus=True)
    assert visible_gpus(launcher) == share_one_gpu("any").get(GPUS, os.environ.get(GPUS))
    launcher.close()
