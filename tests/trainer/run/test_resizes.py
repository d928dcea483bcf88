"""A run that changes its number of ranks within epochs trains like one that does not.

A chain of attempts on 4, 3, 1, 2 and 4 ranks is compared with one attempt on 2 ranks. Two of the
changes follow a SIGTERM, after which the ranks save at the end of the update. The other two follow
a SIGKILL within an update, after which the next attempt repeats the updates since the checkpoint.

43 samples in batches of 10: no number of ranks but 1 and 2 divides a batch, and the last batch of
an epoch has 3 samples, so that one of 4 ranks has none. Samples count 1 to 4 times, so that ranks
differ in their counts, too. Adam divides by the size of a gradient, so its runs compute in fp64.
"""

import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.runs import SGD

SAMPLES, BATCH, EPOCHS, UPDATES = 43, 10, 3, 15
TOLERANCE = 1e-6
SEED = int(os.environ.get("DDP_SEED") or "0")
FILES = ("model", "optimizer", "ema")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of the chain, and how it ends."""

    world: int
    begin: int
    """Updates done when the attempt begins."""
    rank: int = 0
    """Rank that gets the signal."""
    last: int = UPDATES - 1
    """Index of the update within which the rank gets the signal."""
    signal: int | None = None


CHAIN = (
    Attempt(4, 0, rank=1, last=5, signal=signal.SIGKILL),
    Attempt(3, 3, rank=2, last=6, signal=signal.SIGTERM),
    Attempt(1, 7, rank=0, last=11, signal=signal.SIGKILL),
    Attempt(2, 9, rank=1, last=12, signal=signal.SIGTERM),
    Attempt(4, 13),
)
BASE: dict[str, Any] = {
    "global_batch": BATCH,
    "micro_batch": 2,
    "epochs": EPOCHS,
    "clip_norm": 1.0,
    "ema": {"decay": 0.9},
    "log": {"every_steps": 1},
    "checkpoint": {"every_steps": 3},
    "schedule": {"name": "cosine", "warmup_steps": 4},
    "eval_every_steps": 1000,
    "task": {"samples": SAMPLES, "uneven": True, "tied": True},
}
ADAM = {"optimizer": {"name": "adamw", "lr": 0.02}, "precision": "fp64"}
PLAIN = {"optimizer": SGD["optimizer"], "precision": "fp32"}
CASES = [
    (name, BASE | over | {"parallel": {"strategy": name.split()[0]}})
    for over, kind in ((ADAM, "adamw fp64"), (PLAIN, "sgd fp32"))
    for name in (f"{strategy} {kind}" for strategy in ("ddp", "zero1", "fsdp2"))
]
SAMPLED = SEED % len(CASES)
"""Case that also runs in the fast tests."""


def records(home: Path, attempt: int) -> list[dict[str, Any]]:
    """Return the updates of all ranks of an attempt."""
    paths = home.glob(f"{attempt}-*.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def start(
    launcher: Launcher, home: Path, config: dict[str, Any], number: int, attempt: Attempt
) -> Gang:
    home.mkdir(exist_ok=True)
    end = None if attempt.signal is None else [attempt.rank, attempt.last, int(attempt.signal)]
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    arguments.append(f"--checkpoint.directory={home / 'checkpoints'}")
    given = {"arguments": arguments, "records": str(home / str(number)), "end": end}
    return launcher.call("resize_probes:train_recorded", given, world=attempt.world)


def end(gang: Gang, attempt: Attempt) -> None:
    """Wait for an attempt, and check where it began and how it ended."""
    codes = gang.wait(120)
    why = f"{attempt}: {codes}\n{gang.err(attempt.rank)}\n{gang.err(0)}"
    resumed = [attempt.begin] if attempt.begin else []
    assert [event["step"] for event in gang.events("resume")] == resumed
    match attempt.signal:
        case signal.SIGKILL:
            assert codes[attempt.rank] == -signal.SIGKILL, why
            assert all(codes), why
        case signal.SIGTERM:
            assert codes == [85] * attempt.world, why
        case _:
            assert codes == [0] * attempt.world, why


def train_in_chain(launcher: Launcher, home: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Train the chain of attempts, and return the records of updates that were not repeated."""
    kept: list[dict[str, Any]] = []
    for number, (attempt, after) in enumerate(pairwise((*CHAIN, None))):
        assert attempt
        end(start(launcher, home, config, number, attempt), attempt)
        found = records(home, number)
        steps = {record["step"] for record in found}
        # A killed rank leaves its last update undone. With local SGD the others make it.
        stop = attempt.last + (attempt.signal != signal.SIGKILL)
        assert set(range(attempt.begin, stop)) <= steps <= set(range(attempt.begin, UPDATES))
        assert max(steps) <= attempt.last
        repeated = {step for step in steps if after and step >= after.begin}
        assert bool(repeated) == (attempt.signal == signal.SIGKILL)
        kept += [record for record in found if record["step"] not in repeated]
    return kept


def by_update(found: list[dict[str, Any]]) -> list[tuple[list[int], float]]:
    """Return the samples of each update over all ranks, sorted, and its learning rate."""
    samples: dict[int, list[int]] = {}
    rates: dict[int, set[float]] = {}
    for record in found:
        samples.setdefault(record["step"], []).extend(record["samples"])
        rates.setdefault(record["step"], set()).add(record["lr"])
    assert sorted(samples) == list(range(UPDATES))
    assert all(len(rates[step]) == 1 for step in samples)
    return [(sorted(samples[step]), rates[step].pop()) for step in sorted(samples)]


def differences(one: Path, other: Path) -> dict[str, float]:
    """Return the largest difference of a number in each file of the last checkpoints."""
    found = {}
    for file in FILES:
        ours, theirs = (
            load_file(max((home / "checkpoints").glob("step-*")) / f"{file}.safetensors")
            for home in (one, other)
        )
        assert ours.keys() == theirs.keys()
        found[file] = max(float((ours[n] - t).double().abs().max()) for n, t in theirs.items())
    return found


def check_samples(updates: list[tuple[list[int], float]]) -> None:
    """Check that each epoch has each sample once."""
    per_epoch = UPDATES // EPOCHS
    for epoch in range(EPOCHS):
        own = updates[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [len(samples) for samples, _ in own] == [10, 10, 10, 10, 3]
        used = Counter(index for samples, _ in own for index in samples)
        assert used == Counter(range(SAMPLES))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if place == SAMPLED else pytest.mark.slow)
        for place, (name, config) in enumerate(CASES)
    ],
)
def test_run_with_many_resizes_ends_with_the_weights_of_a_fixed_size(
    launcher: Launcher,
    tmp_path: Path,
    config: dict[str, Any],
    record_property: Any,
) -> None:
    fixed = Attempt(2, 0)
    whole = start(launcher, tmp_path / "fixed", config, 0, fixed)
    chained = by_update(train_in_chain(launcher, tmp_path / "chain", config))
    end(whole, fixed)
    check_samples(chained)
    # The same samples and the same learning rate in each update, with other shares of the ranks.
    assert chained == by_update(records(tmp_path / "fixed", 0))
    assert len({rate for _, rate in chained}) > UPDATES // 2
    found = differences(tmp_path / "chain", tmp_path / "fixed")
    record_property("differences", found)
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"local_sgd": {"period": 2, "start_step": 1}},
        {"compression": {"name": "powersgd", "start_step": 2}},
    ],
    ids=json.dumps,
)
def test_run_with_many_resizes_uses_each_sample_once_with_compressed_gradients(
    launcher: Launcher, tmp_path: Path, parallel: dict[str, Any]
) -> None:
    config = BASE | PLAIN | {"parallel": parallel}
    check_samples(by_update(train_in_chain(launcher, tmp_path, config)))
    trained = load_file(max((tmp_path / "checkpoints").glob("step-*")) / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trained.values())
