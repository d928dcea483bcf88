"""Weights of every layout in memory train, and resume, like contiguous ones."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ddp_trainer.checkpoint.tree import decode, encode
from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.dtensor import laid_out_like
from ddp_trainer.parallel.layout import has_gaps, has_overlap, make_dense
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.tools.check.run import check_run
from tests.trainer.layout_probes import STEPS, strategies, train
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, trained

TASK = "layout_tasks:build"
ADAM: dict[str, Any] = {
    "optimizer": {"lr": 0.05},
    "schedule": {"name": "constant"},
    "global_batch": 12,
    "device": "cpu",
    "ema": {"decay": 0.9},
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "permuted": lambda t: t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
    "sliced": lambda t: t.repeat(1, 1, 1, 2)[..., : t.shape[3]],
    "every second": lambda t: t.repeat_interleave(2, 1)[:, ::2],
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4),
    names=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_restored_value_gets_the_memory_layout_of_its_weight(
    shape: tuple[int, int, int, int], names: tuple[str, str], dtype: torch.dtype
) -> None:
    numbers = torch.arange(float(torch.Size(shape).numel())).view(shape)
    weight, value = (LAYOUTS[name](numbers) for name in names)
    weight = weight if not has_gaps(weight) else weight.contiguous()
    found = laid_out_like(value.to(dtype), weight)
    assert found.stride() == weight.stride()
    assert found.dtype == dtype
    assert found.equal(numbers.to(dtype))
    state, document = encode({"kept": [weight.to(dtype)]}, "task")
    saved = {name: tensor.contiguous() for name, tensor in state.items()}
    (kept,) = decode(saved, document)["kept"]
    assert kept.equal(numbers.to(dtype))
    # Dimensions of one element may have any stride.
    longer = [one for one in range(4) if shape[one] > 1]
    assert [kept.stride(one) for one in longer] == [weight.stride(one) for one in longer]


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_overlaps_and_gaps_of_a_strided_tensor_are_detected(
    sizes: list[int], data: st.DataObject
) -> None:
    strides = [data.draw(st.integers(0, 7)) for _ in sizes]
    tensor = torch.zeros(64).as_strided(sizes, strides)
    places = [
        sum(number * stride for number, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, sizes))
    ]
    if len(set(places)) < len(places):
        assert has_overlap(tensor)
    elif not has_overlap(tensor):  # It may also be too hard to tell: refused, to be safe.
        assert has_gaps(tensor) == (max(places) + 1 > len(places))


@pytest.mark.slow
@pytest.mark.parametrize(
    "over",
    [
        {},
        {"optimizer": {"name": "sgd"}, "task": {"half": True}},
        {"precision": "fp64", "channels_last": True, "task": {"layout": "contiguous"}},
    ],
    ids=str,
)
def test_resumed_run_has_the_bits_of_an_uninterrupted_one_with_each_layout(
    tmp_path: Path, over: dict[str, Any]
) -> None:
    case = ADAM | over
    whole = train(Ranks(), tmp_path / "whole", case, STEPS)
    train(Ranks(), tmp_path / "broken", case, STEPS // 2)
    resumed = train(Ranks(), tmp_path / "broken", case, STEPS)
    assert [name for name, value in whole.items() if not value.equal(resumed[name])] == []
    assert any(name.startswith("optimizer/") for name in whole)


# All strategies in one gang, because the start of a gang takes most of the time.
@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_resumed_ranks_have_the_bits_of_an_uninterrupted_run(
    launcher: Launcher, tmp_path: Path, world: int
) -> None:
    parallel: list[dict[str, Any]] = [
        {"strategy": "ddp"},
        {"strategy": "zero1"},
        {"strategy": "fsdp2"},
        {"local_sgd": {"period": 2, "start_step": 1}},
        {"compression": {"name": "powersgd", "start_step": 2}},
    ]
    cases = [ADAM | {"channels_last": True, "parallel": one} for one in parallel]
    gang = launcher.call("layout_probes:compare_resumed", (str(tmp_path), cases), world=world)
    assert gang.wait(timeout=180) == [0] * world, gang.err(0)
    found = gang.events("probe")
    assert [probe["different"] for probe in found] == [[]] * len(cases)
    assert all(probe["compared"] > 20 for probe in found)


@pytest.mark.slow
def test_any_world_size_resumes_and_rolls_back_to_the_same_bits(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Each strategy on each number of ranks resumes the checkpoint of each other."""
    case, worlds = ADAM | {"precision": "fp64"}, (1, 2, 3)
    source = tmp_path / "source"
    gangs = {
        world: launcher.call("layout_probes:write_checkpoints", (str(source), case), world=world)
        for world in worlds
    }
    for world, gang in gangs.items():
        assert gang.wait(timeout=120) == [0] * world, gang.err(0)
    checkpoints = sorted(source.iterdir())
    for world in worlds:
        folders = [str(tmp_path / f"{world}-{one.name}") for one in checkpoints]
        for (one, folder), strategy in itertools.product(
            zip(checkpoints, folders, strict=True), strategies(world)
        ):
            shutil.copytree(one, Path(folder) / strategy)
        gangs[world] = launcher.call(
            "layout_probes:resume_checkpoints", (folders, case), world=world
        )
    for world, gang in gangs.items():
        assert gang.wait(timeout=120) == [0] * world, gang.err(0)
    found = [probe for gang in gangs.values() for probe in gang.events("probe")]
    assert len(found) == sum(len(strategies(world)) for world in worlds) ** 2
    assert [(one["resumed"], one["rolled_back"]) for one in found] == [([], [])] * len(found)
    assert all(one["compared"] > 20 for one in found)
    assert [one["trained"] for one in found] == pytest.approx(
        [found[0]["trained"]] * len(found), rel=1e-7
    )


@pytest.mark.slow
def test_run_resumes_into_another_memory_layout(tmp_path: Path) -> None:
    def layout(name: str, folder: str, steps: int) -> dict[str, Tensor]:
        return train(Ranks(), tmp_path / folder, ADAM | {"task": {"layout": name}}, steps)

    whole = layout("contiguous", "whole", STEPS)
    layout("strided", "mixed", STEPS // 2)
    mixed = layout("contiguous", "mixed", STEPS)
    for name, value in whole.items():
        assert value.allclose(mixed[name], atol=1e-5, rtol=0), name


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_parameter_that_is_a_slice_trains_like_a_separate_tensor(optimizer: str) -> None:
    case: dict[str, Any] = {"optimizer": {"name": optimizer, "lr": 0.02}, "max_steps": 8}
    one, other = (
        trained(TASK, **case, task={"layout": name}).learner.model.state_dict()
        for name in ("strided", "contiguous")
    )
    for name, value in other.items():
        assert value.allclose(one[name], atol=1e-5, rtol=0), name


def test_copied_parameter_stays_shared_and_is_named_in_a_note() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(4, 6))
    table = torch.randn(6, 8)
    first, second = model[0], model[1]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    first.weight = second.weight = nn.Parameter(table[:, 1::2])
    assert make_dense(model) == ["0.weight"]
    assert first.weight is second.weight
    assert first.weight.is_contiguous()
    assert first.weight.equal(table[:, 1::2])
    assert make_dense(model) == []


def test_check_names_parameters_that_are_slices() -> None:
    found: list[tuple[str, str]] = []

    def emit(kind: str, **fields: Any) -> None:
        if "message" in fields:
            found.append((kind, fields["message"]))

    check_run(TASK, resolve(SGD), 64, 2, emit)
    (sentence,) = [message for kind, message in found if kind == "warning"]
    assert sentence == (
        '1 parameters are slices of other tensors with gaps in memory, first "slice": the trainer'
        " trains a copy of each, so the other tensors do not change with them"
    )


@pytest.mark.parametrize(
    ("shared", "sentence"),
    [
        ("expanded", 'elements of the parameter "scale" share their memory, as after expand'),
        ("overlapping", 'the parameters "plain" and "scale" share their memory, which ends when'),
        ("twice", 'the parameters "plain" and "scale" share their memory, which ends when'),
    ],
)
def test_parameters_that_share_memory_are_refused_before_the_first_update(
    shared: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(TASK, max_steps=1, task={"shared": shared})
