"""Tests of the bundled tasks."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ddp_trainer.config.settings import check
from ddp_trainer.errors import InputError
from ddp_trainer.tasks.gpt import GptConfig, GptTask
from ddp_trainer.tasks.images import cifar10, digits
from ddp_trainer.tasks.miniresnet import MiniResNetConfig, MiniResNetTask
from tests.trainer.rank_processes import Launcher


@pytest.mark.slow
def test_miniresnet_learns_the_digits_under_torchrun(tmp_path: Path) -> None:
    environ = os.environ | {
        "DDP_TASK": "ddp_trainer.tasks.miniresnet:build",
        "DDP_CONFIG": '{"epochs": 20, "global_batch": 256}',
        "DDP_CHECKPOINT_DIR": str(tmp_path / "ck"),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "ddp_trainer", "train"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary"
    assert summary["metrics"]["accuracy"] >= 0.97
    assert summary["seconds"] < 30


@pytest.mark.slow
def test_digits_data_set_equals_that_of_scikit_learn() -> None:
    shipped = resources.files("ddp_trainer.tasks") / "data" / "digits.csv.gz"
    original = resources.files("sklearn.datasets.data") / "digits.csv.gz"
    assert shipped.read_bytes() == original.read_bytes()
    assert len(digits().train.images) + len(digits().test.images) == 1797


@pytest.mark.slow
def test_gpt_learns_to_predict_characters(launcher: Launcher) -> None:
    gang = launcher.train(
        "--task=ddp_trainer.tasks.gpt:build",
        "--max_steps=90",
        "--global_batch=64",
        "--task.width=32",
        "--task.layers=1",
        "--clip_norm=1.0",
        "--optimizer.lr=0.01",
        "--log.peak_tflops=1",
        world=2,
    )
    assert gang.wait() == [0, 0]
    newest = gang.events("progress")[-1]
    flops = GptTask(GptConfig(width=32, layers=1)).flops_per_sample
    used = newest["samples_per_second"] * flops / 2e12
    assert newest["mfu"] == pytest.approx(used, rel=1e-4)
    # Character frequencies alone give 3.2 nats, equal probabilities 4.5.
    assert gang.events("summary")[0]["metrics"]["loss"] < 2.9


def test_flops_of_the_gpt_equal_the_count_of_torch() -> None:
    task = GptTask(GptConfig(width=128, context=32, max_chars=100_000))
    batch = torch.stack([task.train_data[index] for index in range(4)])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task.loss(task.model, batch).sum.backward()
    assert 4 * task.flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.02)


def write_cifar_files(directory: Path, images: int) -> None:
    """Write six files in the format of CIFAR-10, with one colour per class."""
    classes = np.arange(images, dtype=np.uint8) % 10
    pixels = np.repeat(classes[:, None] * 20, 3 * 32 * 32, axis=1)
    pixels[:, : 32 * 32] = 255 - pixels[:, : 32 * 32]
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (directory / f"{name}.bin").write_bytes(np.hstack([classes[:, None], pixels]).tobytes())


@pytest.mark.parametrize("count", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_miniresnet_memorizes_images(count: int) -> None:
    torch.manual_seed(0)
    task = MiniResNetTask(MiniResNetConfig(data="synthetic", count=80, width=8))
    images, _ = task.train_data.__getitems__(list(range(count)))
    classes = torch.randint(10, (count,))
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        functional.cross_entropy(task.model(images), classes).backward()
        optimizer.step()
    assert (task.model(images).argmax(1) == classes).all()


@pytest.mark.slow
def test_miniresnet_learns_cifar10_from_its_files(launcher: Launcher, tmp_path: Path) -> None:
    write_cifar_files(tmp_path, images=40)
    data = cifar10(str(tmp_path))
    assert (len(data.train.classes), len(data.test.classes)) == (200, 40)
    red, green, blue = data.train.images[3].unbind()
    assert data.train.classes[3] == 3
    assert (red == 195).all()
    assert (green == 60).all()
    assert (blue == 60).all()
    gang = launcher.train(
        "--task=ddp_trainer.tasks.miniresnet:build",
        "--task.data=cifar10",
        f"--task.directory={tmp_path}",
        "--task.shift=4",
        "--task.width=8",
        "--epochs=12",
        "--global_batch=20",
        world=2,
    )
    assert gang.wait() == [0, 0], gang.err(0)
    assert gang.events("summary")[0]["metrics"]["accuracy"] >= 0.7


def test_cifar10_rejects_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*/data_batch_1\.bin of CIFAR-10's binary"):
        cifar10(str(tmp_path))
    write_cifar_files(tmp_path, images=1)
    (tmp_path / "test_batch.bin").write_bytes(b"12345")
    with pytest.raises(
        InputError, match=r"must consist of records of 3073 bytes, .* but has 5 bytes"
    ):
        cifar10(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data": "cifar10"}, '"directory" must name the folder of CIFAR-10\'s binary version'),
        ({"directory": "/data"}, '"directory" must not be set with digits, because'),
        ({"count": 100}, '"count" must not be set with digits, because'),
        ({"data": "cifar"}, "'digits', 'cifar10' or 'synthetic'"),
    ],
)
def test_miniresnet_rejects_settings_that_contradict_each_other(
    settings: dict[str, str | int], sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        check(MiniResNetConfig, settings, prefix="task.")
