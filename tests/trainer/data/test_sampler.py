from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.data.sampler import GlobalSampler, Portion, Taker, evaluation_portions

SIZES = st.integers(1, 60)
WORLDS = st.integers(1, 7)


def walk(
    sampler: GlobalSampler, start: int, updates: int, world: int, micro: int
) -> list[list[list[Portion[int]]]]:
    """Portions by rank and update."""
    ranks = []
    for rank in range(world):
        grouped: list[list[Portion[int]]] = [[]]
        for portion in sampler.portions(start, updates, Taker(rank, world, micro)):
            grouped[-1].append(portion)
            if portion.last:
                grouped.append([])
        ranks.append(grouped[:-1])
    return ranks


def counted(ranks: list[list[list[Portion[int]]]]) -> Counter[int]:
    return Counter(
        index
        for updates in ranks
        for update in updates
        for portion in update
        if portion.weight
        for index in portion.items
    )


@given(size=SIZES, batch=st.integers(1, 20), world=WORLDS, micro=st.integers(1, 5))
@settings(max_examples=60)
def test_an_epoch_has_every_sample_once_and_as_many_updates_on_every_rank(
    size: int, batch: int, world: int, micro: int
) -> None:
    sampler = GlobalSampler(size, batch, seed=3)
    updates = sampler.updates_between(0, size)
    ranks = walk(sampler, 0, updates, world, micro)
    assert counted(ranks) == Counter(range(size))
    assert {len(done) for done in ranks} == {updates}
    for update in zip(*ranks, strict=True):
        shares = [sum(len(p.items) * p.weight for p in portions) for portions in update]
        assert max(shares) - min(shares) <= 1
        assert {p.update_samples for portions in update for p in portions} == {sum(shares)}


@given(size=SIZES, batch=st.integers(1, 20), worlds=st.tuples(WORLDS, WORLDS), part=st.floats(0, 1))
@settings(max_examples=60)
def test_a_walk_can_go_on_anywhere_with_another_number_of_ranks(
    size: int, batch: int, worlds: tuple[int, int], part: float
) -> None:
    sampler = GlobalSampler(size, batch, seed=3)
    updates = sampler.updates_between(0, 2 * size)
    before = int(part * updates)
    first = walk(sampler, 0, before, worlds[0], 3)
    consumed = sum(update[0].update_samples for update in first[0])
    second = walk(sampler, consumed, updates - before, worlds[1], 2)
    assert counted(first) + counted(second) == Counter(2 * list(range(size)))
    assert sampler.updates_between(consumed, 2 * size) == updates - before


def test_the_order_is_a_function_of_seed_and_epoch_only() -> None:
    sampler = GlobalSampler(20, 4, seed=1)
    assert sampler.order(0) == GlobalSampler(20, 7, seed=1).order(0)
    assert sampler.order(0) != sampler.order(1)
    assert sampler.order(0) != GlobalSampler(20, 4, seed=2).order(0)
    assert GlobalSampler(5, 4, seed=2, shuffle=False).order(3) == [0, 1, 2, 3, 4]


def test_portions_have_seeds_of_their_own() -> None:
    sampler = GlobalSampler(20, 4, seed=1)
    ranks = walk(sampler, 0, 10, 2, 1)
    seeds = [p.seed for updates in ranks for update in updates for p in update]
    assert len(set(seeds)) == len(seeds)


@given(size=SIZES, world=WORLDS, micro=st.integers(1, 9))
@settings(max_examples=40)
def test_evaluation_covers_every_sample_once_and_gives_each_rank_something(
    size: int, world: int, micro: int
) -> None:
    ranks = [evaluation_portions(size, Taker(rank, world, micro)) for rank in range(world)]
    assert counted([[portions] for portions in ranks]) == Counter(range(size))
    assert all(ranks)
