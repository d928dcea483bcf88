"""Tests of the order of samples in an epoch."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.data import order
from ddp_trainer.data.order import BLOCK, MOST_LISTED, ComputedOrder
from ddp_trainer.data.sampler import GlobalSampler
from ddp_trainer.run.saving import save, state_of
from ddp_trainer.saved_state import SavedState
from ddp_trainer.seeds import derive_seed
from tests.trainer.runs import opened, trained

LARGE = MOST_LISTED + 12_345


@given(size=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=60)
def test_computed_order_contains_every_sample_once(size: int, seed: int) -> None:
    assert sorted(ComputedOrder(size, seed)[:]) == list(range(size))


@given(begins=st.lists(st.integers(0, 40_000), max_size=5), length=st.integers(0, 2 * BLOCK))
@settings(max_examples=30)
def test_slices_of_a_computed_order_do_not_depend_on_earlier_ones(
    begins: list[int], length: int
) -> None:
    whole, parts = ComputedOrder(40_000, 3)[:], ComputedOrder(40_000, 3)
    for begin in begins:
        assert parts[begin : begin + length] == whole[begin : begin + length]


@pytest.mark.slow
def test_computed_order_looks_random() -> None:
    found = np.array(GlobalSampler(LARGE, 8, seed=1).order(0)[:])
    assert len(np.unique(found)) == LARGE
    positions = np.arange(LARGE)
    # Cells of position and sample: chi-square of 4096 cells has mean 4095 and deviation 91.
    counts, _, _ = np.histogram2d(positions, found, bins=64)
    expected = LARGE / 4096
    assert abs(((counts - expected) ** 2 / expected).sum() - 4095) < 5 * 91
    # Correlations of sample with position and with the previous sample have deviation 1.
    for one, other in ((positions, found), (found[1:], found[:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) * LARGE**0.5 < 5
    # The expected number of each is 1.
    assert (found == positions).sum() < 10
    assert (np.diff(found) == 1).sum() < 10
    following = np.array(GlobalSampler(LARGE, 8, seed=1).order(1)[:])
    assert (found == following).sum() < 10


def test_order_of_a_thousand_million_samples_needs_no_array() -> None:
    sampler = GlobalSampler(10**9, 4096, seed=1)
    tracemalloc.start()
    batch = sampler.order(3)[10**8 : 10**8 + 4096]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(batch)) == 4096
    assert 0 <= min(batch) < max(batch) < 10**9
    assert peak < 4_000_000


@pytest.mark.parametrize("size", [20, LARGE])
def test_sample_order_of_an_older_release_can_be_computed(size: int) -> None:
    generator = torch.Generator().manual_seed(derive_seed(1, "order", 2))
    expected = torch.randperm(size, generator=generator).tolist()
    assert GlobalSampler(size, 4, seed=1, order_version=1).order(2)[:] == expected
    assert (GlobalSampler(size, 4, seed=1).order(2)[:] == expected) == (size == 20)


def test_run_keeps_the_sample_order_with_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "MOST_LISTED", 10)
    folder = {"checkpoint": {"directory": str(tmp_path)}, "global_batch": 5}
    run = trained(max_steps=1, **folder)
    save(run)
    state = json.loads((max(tmp_path.glob("step-*")) / "state.json").read_text())
    assert state["order_version"] == order.ORDER_VERSION
    resumed = opened(max_steps=2, **folder)
    assert isinstance(resumed.sampler, GlobalSampler)
    assert isinstance(resumed.sampler.order(0), ComputedOrder)
    # A checkpoint of an older release has no version.
    saved = resumed.checkpoints.receive(torch.device("cpu"))
    document = saved.state.document()
    del document["order_version"]
    saved = replace(saved, state=SavedState.model_validate(document))
    monkeypatch.setattr(type(resumed.checkpoints), "receive", lambda *_: saved)
    older = opened(max_steps=2, **folder)
    assert isinstance(older.sampler, GlobalSampler)
    assert isinstance(older.sampler.order(0), order.ListedOrder)
    assert state_of(older).order_version == 1
