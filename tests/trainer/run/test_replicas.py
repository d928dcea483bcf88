"""Tests of the comparison of the ranks' weights, which finds silent corruption."""

import re
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.config.settings import resolve
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.replicas import Difference, judge, sentence, why_off
from ddp_wire.replica_errors import PREFIX
from tests.trainer.rank_processes import Gang, Launcher

RUN = ["--global_batch=12", "--max_steps=12", "--eval_every_steps=1000"]


def flipped(launcher: Launcher, world: int, *arguments: str, ranks: list[int], **more: Any) -> Gang:
    given = {"ranks": ranks, "step": 5, "arguments": [*RUN, *arguments], **more}
    return launcher.call("replica_probes:train_with_flip", given, world=world)


@pytest.mark.slow
def test_rank_with_a_flipped_bit_is_named_at_the_next_comparison(launcher: Launcher) -> None:
    gang = flipped(launcher, 3, "--replicas.every_steps=4", ranks=[2])
    assert gang.wait() == [87, 87, 86]
    found = re.fullmatch(
        r"replicas: the weights of rank 2 differ from those of the other 2 ranks in \d+ of 18"
        r' tensors, first "[a-z.]+", after update 8; at update 4 all ranks were equal; memory or'
        r" processor there may corrupt data\n",
        gang.err(2),
    )
    assert found, gang.err(2)
    assert (gang.err(0), gang.err(1)) == ("", "")
    (warning,) = gang.events("warning")
    assert warning["message"] == gang.err(2).strip()


@pytest.mark.slow
def test_no_rank_is_blamed_without_a_majority(launcher: Launcher) -> None:
    gang = flipped(launcher, 2, "--replicas.every_steps=1", ranks=[1])
    assert gang.wait() == [87, 87]
    assert gang.err(0).strip() == (
        'replicas: the weights of ranks 0, 1 differ in 1 of 18 tensors, first "middle.weight",'
        " after update 5; at update 4 all ranks were equal; no majority shows which of them are"
        " right"
    )
    assert gang.err(1) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "name", "arguments"),
    [
        ("average", "average of middle.weight", ["--ema.decay=0.9"]),
        ("exp_avg", "exp_avg of middle.weight", []),
        ("exp_avg_sq", "exp_avg_sq of middle.weight", []),
        ("average", "average of middle.weight", ["--ema.decay=0.9", "--parallel.strategy=zero1"]),
    ],
)
def test_flipped_bit_of_moments_and_average_is_found(
    launcher: Launcher, what: str, name: str, arguments: list[str]
) -> None:
    every = "--replicas.every_steps=1"
    gang = flipped(launcher, 2, every, "--clip_norm=1", *arguments, ranks=[0], what=what)
    assert gang.wait() == [87, 87]
    assert f'first "{name}", after update 5' in gang.err(0)


@pytest.mark.slow
def test_with_policy_stop_every_rank_has_the_code_that_is_never_retried(launcher: Launcher) -> None:
    settings = ["--replicas.every_steps=2", "--replicas.policy=stop"]
    gang = flipped(launcher, 3, *settings, ranks=[0])
    assert gang.wait() == [88, 88, 88]
    assert gang.err(0).startswith(f"{PREFIX}the weights of rank 0 differ from")
    assert (gang.err(1), gang.err(2)) == ("", "")


@pytest.mark.slow
def test_checkpoint_is_saved_only_after_an_equal_comparison_and_the_next_attempt_resumes_from_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    """So each checkpoint can be trusted, although comparisons are rare."""
    settings = [f"--checkpoint.directory={tmp_path / 'run'}", "--checkpoint.every_steps=3"]
    gang = flipped(launcher, 3, *settings, ranks=[1])
    assert gang.wait() == [87, 86, 87]
    assert "after update 6; at update 3 all ranks were equal" in gang.err(1)
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000003.attempt-0"]
    again = launcher.train("--task=sample_tasks:build", *RUN, *settings, world=3)
    assert again.wait() == [0, 0, 0], again.err(0)
    assert [event["step"] for event in again.events("resume")] == [3]


@pytest.mark.slow
def test_ranks_that_differ_keep_no_state_in_memory(launcher: Launcher, tmp_path: Path) -> None:
    """The state of the majority is wrong, too: its gradients contain those of the other rank."""
    (tmp_path / "records").mkdir()
    settings = [f"--checkpoint.directory={tmp_path / 'run'}", "--checkpoint.every_steps=3"]
    given = {"ranks": [1], "step": 5, "arguments": [*RUN, *settings]}
    environ = {"DDP_RECORDS_DIR": str(tmp_path / "records"), "DDP_ATTEMPT": "1"}
    gang = launcher.call("replica_probes:train_with_flip", given, world=3, **environ)
    assert gang.wait() == [87, 86, 87]
    assert list((tmp_path / "records").glob("step-*")) == []


@pytest.mark.slow
def test_last_updates_of_a_run_are_compared(launcher: Launcher, tmp_path: Path) -> None:
    gang = flipped(launcher, 3, f"--checkpoint.directory={tmp_path}", ranks=[1], step=12)
    assert gang.wait() == [87, 86, 87]


@pytest.mark.slow
def test_ranks_of_local_sgd_are_compared_only_when_they_are_equal(launcher: Launcher) -> None:
    local = ["--parallel.local_sgd.period=3", "--ema.decay=0.9", "--replicas.every_steps=1"]
    gang = launcher.train("--task=sample_tasks:build", *RUN, *local, world=3)
    assert gang.wait() == [0, 0, 0], gang.err(0)
    # The average of update 6 spreads a flip of update 5 to all ranks. A later flip is found.
    gang = flipped(launcher, 3, *local, ranks=[1], step=6)
    assert gang.wait() == [87, 86, 87]
    assert "after update 6; at update 3 all ranks were equal" in gang.err(1)


def test_other_bits_of_nan_are_no_difference(launcher: Launcher) -> None:
    gang = flipped(launcher, 2, "--replicas.every_steps=1", "--max_steps=5", ranks=[1], nan=True)
    assert gang.wait() == [0, 0], gang.err(0)


SETTINGS = {
    "ddp": ["--parallel.find_unused_parameters=true"],
    "adamw, ema and clipping": ["--ema.decay=0.9", "--clip_norm=0.1"],
    "sgd": ["--optimizer.name=sgd"],
    "own optimizer": ["--task.own_optimizer=true"],
    "accumulation": ["--micro_batch=1"],
    "bf16": ["--precision=bf16"],
    "fp64": ["--precision=fp64"],
    "zero1": ["--parallel.strategy=zero1", "--ema.decay=0.9", "--clip_norm=0.1"],
    "fp16 compression": ["--parallel.compression.name=fp16"],
    "powersgd": ["--parallel.compression.name=powersgd", "--parallel.compression.start_step=2"],
    "BatchNorm": ["--task.batch_norm=true", "--task.dropout=0.2", "--data.drop_last=true"],
    "tied": ["--task.tied=true"],
    "nonfinite": ["--task.nan_sample=7", "--nonfinite.patience=99"],
    "nonfinite, own optimizer": ["--task.nan_sample=7", "--task.own_optimizer=true"],
    "teacher": ["--task=sample_tasks:build_teacher"],
}


FAST = {"adamw, ema and clipping", "zero1"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in SETTINGS],
)
def test_equal_ranks_raise_no_alarm(launcher: Launcher, case: str) -> None:
    arguments = ["--task=sample_tasks:build", *RUN, "--replicas.every_steps=1", *SETTINGS[case]]
    gang = launcher.call("replica_probes:count_checks", arguments, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    counts = [event["tensors"] for event in gang.events("compared")]
    assert len(counts) == 12
    assert {event["activity"] for event in gang.events("compared")} == {"replicas"}
    assert min(counts) >= 6


def test_ranks_of_fsdp2_are_not_compared_and_a_note_says_so(launcher: Launcher) -> None:
    arguments = ["--task=sample_tasks:build", *RUN, "--parallel.strategy=fsdp2"]
    arguments.append("--replicas.every_steps=1")
    gang = launcher.call("replica_probes:count_checks", arguments, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    assert gang.events("compared") == []
    notes = [event["message"] for event in gang.events("note")]
    sentence = (
        "the ranks do not compare their weights (replicas.every_steps), because fsdp2 splits them:"
        " no two ranks hold the same"
    )
    assert notes == [sentence]


def test_comparisons_can_be_turned_off(launcher: Launcher) -> None:
    gang = flipped(launcher, 2, "--replicas.every_steps=0", ranks=[1])
    assert gang.wait() == [0, 0]


def test_ranks_that_round_differently_are_not_compared() -> None:
    config, ranks = resolve({}), Ranks(rank=0, world_size=2)
    assert why_off(config, ranks, ["AVX2 on 2 threads"] * 2) is None
    assert why_off(config, ranks, ["AVX2 on 2 threads", "AVX2 on 4 threads"]) == (
        "the ranks do not compare their weights (replicas.every_steps), because they may round"
        " differently: some compute with AVX2 on 2 threads, some with AVX2 on 4 threads"
    )
    assert why_off(config, Ranks(), ["AVX2 on 2 threads"]) is None


@pytest.mark.parametrize(
    ("rows", "odd", "has_majority"),
    [
        ([[1, 2], [1, 2]], None, True),
        ([[1, 2], [1, 3]], [0, 1], False),
        ([[1, 2], [1, 3], [1, 2]], [1], True),
        ([[1, 2], [9, 3], [1, 2], [1, 2], [8, 2]], [1, 4], True),
        ([[1, 2], [1, 3], [1, 2], [1, 3]], [0, 1, 2, 3], False),
        ([[1, 1], [2, 2], [3, 3]], [0, 1, 2], False),
    ],
)
def test_ranks_that_differ_from_most_are_blamed(
    rows: list[list[int]], odd: list[int] | None, has_majority: bool
) -> None:
    found = judge(rows, ["a", "b"])
    if odd is None:
        assert found is None
        return
    assert found is not None
    assert (found.odd, found.has_majority) == (odd, has_majority)


def test_sentence_lists_at_most_eight_ranks() -> None:
    found = Difference(list(range(1, 11)), has_majority=True, tensors=["a"])
    text = sentence(found, world_size=32, total=3, step=5, equal=4)
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more differ from those of the other 22" in text
