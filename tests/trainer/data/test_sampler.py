"""Tests of the samplers of indexed data."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.data.sampler import (
    GlobalSampler,
    Portion,
    RankSlice,
    evaluation_portions,
    passes_of,
    shortest_pass,
)
from ddp_trainer.errors import InputError

SIZES = st.integers(1, 60)
WORLDS = st.integers(1, 7)


def portions_of(
    sampler: GlobalSampler, start: int, updates: int, world: int, micro_batch: int
) -> list[list[list[Portion[int]]]]:
    """Return the portions of all ranks, by rank and update."""
    ranks = []
    for rank in range(world):
        grouped: list[list[Portion[int]]] = [[]]
        for portion in sampler.portions(start, updates, RankSlice(rank, world, micro_batch)):
            grouped[-1].append(portion)
            if portion.last:
                grouped.append([])
        ranks.append(grouped[:-1])
    return ranks


def count_indices(ranks: list[list[list[Portion[int]]]]) -> Counter[int]:
    return Counter(
        index
        for updates in ranks
        for update in updates
        for portion in update
        if portion.weight
        for index in portion.items
    )


@given(size=SIZES, batch=st.integers(1, 20), world=WORLDS, micro_batch=st.integers(1, 5))
@settings(max_examples=60)
def test_epoch_has_every_sample_once_and_as_many_updates_on_every_rank(
    size: int, batch: int, world: int, micro_batch: int
) -> None:
    sampler = GlobalSampler(size, batch, seed=3)
    updates = sampler.updates_between(0, size)
    ranks = portions_of(sampler, 0, updates, world, micro_batch)
    assert count_indices(ranks) == Counter(range(size))
    assert {len(done) for done in ranks} == {updates}
    for update in zip(*ranks, strict=True):
        shares = [sum(len(p.items) * p.weight for p in portions) for portions in update]
        assert max(shares) - min(shares) <= 1
        for portions in update:
            sizes = [int(len(p.items) * p.weight) for p in portions]
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= micro_batch
        assert {p.update_samples for portions in update for p in portions} == {sum(shares)}


@given(size=SIZES, batch=st.integers(1, 20), worlds=st.tuples(WORLDS, WORLDS), part=st.floats(0, 1))
@settings(max_examples=60)
def test_sampler_can_resume_anywhere_with_another_number_of_ranks(
    size: int, batch: int, worlds: tuple[int, int], part: float
) -> None:
    sampler = GlobalSampler(size, batch, seed=3)
    updates = sampler.updates_between(0, 2 * size)
    before = int(part * updates)
    first = portions_of(sampler, 0, before, worlds[0], 3)
    consumed = sum(update[0].update_samples for update in first[0])
    second = portions_of(sampler, consumed, updates - before, worlds[1], 2)
    assert count_indices(first) + count_indices(second) == Counter(2 * list(range(size)))
    assert sampler.updates_between(consumed, 2 * size) == updates - before


@given(
    size=SIZES,
    batches=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    worlds=st.tuples(WORLDS, WORLDS),
    part=st.floats(0, 1),
)
@settings(max_examples=100)
def test_dropped_samples_count_as_consumed_when_a_run_resumes_anywhere(
    size: int, batches: tuple[int, int], worlds: tuple[int, int], part: float
) -> None:
    # The run resumes with another number of ranks and another global batch.
    before, after = (
        GlobalSampler(size, min(size, batch), seed=3, drop_last=True) for batch in batches
    )
    updates = before.updates_between(0, size)
    assert updates == size // before.global_batch
    done = int(part * 2 * updates)
    first = portions_of(before, 0, done, worlds[0], 3)
    position = 0
    for update in first[0]:
        assert update[0].update_samples == before.global_batch
        position = before.after(position, update[0].update_samples)
    assert position == before.end_after(done)
    assert before.ends_epoch(position) == (done % updates == 0)
    epoch, offset = divmod(position, size)
    left = after.updates_between(position, (epoch + 1) * size)
    assert left == (size - offset) // after.global_batch
    second = portions_of(after, position, left, worlds[1], 2)
    order = after.order(epoch)[offset : offset + left * after.global_batch]
    assert count_indices(second) == Counter(order)
    for _ in range(left):
        position = after.after(position, after.global_batch)
    assert position % size == 0 or left == 0
    (following,) = portions_of(after, position, 1, 1, size)[0]
    start = after.order(after.epoch_of(position))
    assert following[0].items == start[: after.global_batch]


def test_drop_last_that_drops_every_batch_is_an_error() -> None:
    with pytest.raises(InputError, match="global_batch is 9 and train_data holds 8 samples"):
        GlobalSampler(8, 9, seed=0, drop_last=True)


@given(samples=st.integers(1, 60), world=WORLDS, micro_batch=st.integers(1, 9))
@settings(max_examples=60)
def test_shortest_pass_equals_the_smallest_portion_of_a_batch(
    samples: int, world: int, micro_batch: int
) -> None:
    portions = [
        portion
        for rank in range(world)
        for portion in RankSlice(rank, world, micro_batch).portions([0] * samples, (0,))
    ]
    lengths = [len(portion.items) for portion in portions if portion.weight]
    assert shortest_pass(samples, world, micro_batch) == min(lengths)
    passes = len(portions) // world
    assert passes == passes_of(samples, world, micro_batch)
    together = [sum(len(p.items) * p.weight for p in portions[n::passes]) for n in range(passes)]
    assert shortest_pass(samples, world, micro_batch, together=True) == min(together)


def test_sample_order_depends_only_on_seed_and_epoch() -> None:
    sampler = GlobalSampler(20, 4, seed=1)
    assert sampler.order(0)[:] == GlobalSampler(20, 7, seed=1).order(0)[:]
    assert sampler.order(0)[:] != sampler.order(1)[:]
    assert sampler.order(0)[:] != GlobalSampler(20, 4, seed=2).order(0)[:]
    assert list(GlobalSampler(5, 4, seed=2, shuffle=False).order(3)[:]) == [0, 1, 2, 3, 4]


def test_each_portion_of_a_batch_has_its_own_seed() -> None:
    sampler = GlobalSampler(20, 4, seed=1)
    ranks = portions_of(sampler, 0, 10, 2, 1)
    seeds = [p.seed for updates in ranks for update in updates for p in update]
    assert len(set(seeds)) == len(seeds)


@given(size=SIZES, world=WORLDS, micro_batch=st.integers(1, 9))
@settings(max_examples=40)
def test_evaluation_uses_every_sample_once_and_gives_every_rank_a_portion(
    size: int, world: int, micro_batch: int
) -> None:
    ranks = [
        evaluation_portions(size, RankSlice(rank, world, micro_batch)) for rank in range(world)
    ]
    assert count_indices([[portions] for portions in ranks]) == Counter(range(size))
    assert all(ranks)
