"""Validation and merging of run settings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import (
    check,
    describe,
    environment_document,
    merge,
    read_document,
    read_overrides,
    resolve,
)
from ddp_trainer.errors import InputError

UNUSED = ", because it has no effect"


class InnerSettings(BaseModel):
    depth: int = 2


class TaskSettings(BaseModel):
    width: int = Field(default=8, gt=0)
    inner: InnerSettings = InnerSettings()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"epoch": 3}, 'config: unknown key "epoch"; did you mean "epochs"?'),
        ({"lr": 1.0}, 'config: unknown key "lr"; did you mean "optimizer.lr"?'),
        (
            {"schedule": {"warmup": 5}},
            'config: unknown key "schedule.warmup"; did you mean "schedule.warmup_steps"?',
        ),
        ({"zzz": 5}, 'config: unknown key "zzz"'),
        ({"epochs": "ten"}, 'config: epochs must be a valid integer, not "ten"'),
        ({"epochs": True}, "config: epochs must be a valid integer, not true"),
        ({"epochs": 0}, "config: epochs must be greater than 0, not 0"),
        ({"data": 3}, "config: data must be an object, not 3"),
        ({"optimizer": {"lr": None}}, "config: optimizer.lr must be a valid number, not null"),
        (
            {"optimizer": {"momentum": 0.5}},
            'config: optimizer: "momentum" must not be set with adamw' + UNUSED,
        ),
        (
            {"optimizer": {"betas": [1.5, 0.9]}},
            'config: optimizer: "betas" must lie between 0 and 1',
        ),
        (
            {"schedule": {"name": "constant", "final_fraction": 0.5}},
            'config: schedule: "final_fraction" must not be set with constant' + UNUSED,
        ),
        (
            {"schedule": {"decay_steps": 5}},
            'config: schedule: "decay_steps" must not be set with cosine' + UNUSED,
        ),
        (
            {"schedule": {"scaling": "sqrt"}},
            'config: schedule: "scaling" must not be set without base_batch' + UNUSED,
        ),
        (
            {"ema": {"warmup": False}},
            'config: ema: "warmup" must not be set without decay' + UNUSED,
        ),
        (
            {"nonfinite": {"policy": "stop", "patience": 3}},
            'config: nonfinite: "patience" must not be set with policy stop' + UNUSED,
        ),
        (
            {"nonfinite": {"policy": "rollback"}},
            "config: nonfinite.policy rollback requires checkpoint.directory",
        ),
        (
            {"init_strict": False},
            'config: "init_strict" must not be set without init_from' + UNUSED,
        ),
        (
            {"compile_mode": "max-autotune"},
            'config: "compile_mode" must not be set without compile' + UNUSED,
        ),
        (
            {"parallel": {"compression": {"rank": 2}}},
            'config: parallel.compression: "rank" must not be set with none' + UNUSED,
        ),
        (
            {"parallel": {"compression": {"name": "powersgd", "start_step": 1}}},
            'config: parallel.compression: "start_step" must be 2 or more with powersgd',
        ),
        (
            {"parallel": {"strategy": "fsdp2", "compression": {"name": "fp16"}}},
            'config: parallel: "compression" requires strategy ddp or zero1',
        ),
        (
            {"parallel": {"strategy": "fsdp2", "bucket_mb": 5}},
            'config: parallel: "bucket_mb" must not be set with fsdp2' + UNUSED,
        ),
        (
            {"parallel": {"static_graph": True, "find_unused_parameters": True}},
            'config: parallel: "find_unused_parameters" must not be set with static_graph' + UNUSED,
        ),
        (
            {"parallel": {"strategy": "zero1", "local_sgd": {"period": 4}}},
            'config: parallel: "local_sgd" requires strategy ddp',
        ),
        (
            {"parallel": {"compression": {"name": "fp16"}, "local_sgd": {"period": 4}}},
            'config: parallel: "local_sgd" and "compression" cannot be combined',
        ),
        (
            {"precision": "fp16", "parallel": {"local_sgd": {"period": 4}}},
            (
                "config: parallel.local_sgd cannot be combined with precision fp16,"
                " because each rank would use its own loss scale"
            ),
        ),
    ],
)
def test_invalid_setting_is_reported_in_one_sentence(
    document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        resolve(document)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"widht": 3}, 'config: unknown key "task.widht"; did you mean "task.width"?'),
        (
            {"inner": {"dept": 3}},
            'config: unknown key "task.inner.dept"; did you mean "task.inner.depth"?',
        ),
        ({"width": -1}, "config: task.width must be greater than 0, not -1"),
    ],
)
def test_task_settings_are_validated_like_run_settings(
    document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        check(TaskSettings, document, prefix="task.")
    assert str(caught.value) == sentence


def test_batch_without_a_sample_for_each_rank_is_an_input_error() -> None:
    with pytest.raises(InputError, match="global_batch 2 is less than the number of ranks, 3"):
        RunConfig(global_batch=2).batch_split(3)
    assert RunConfig(global_batch=3).batch_split(3).per_rank == 1


@pytest.mark.parametrize(
    ("world", "batch", "micro_batch", "split"),
    [
        (3, 48, 4, (16, 4, 4)),
        (3, 16, None, (6, 6, 1)),
        (3, 16, 4, (6, 4, 2)),
        (2, 8, 3, (4, 3, 2)),
        (4, 8, 16, (2, 2, 1)),
    ],
)
def test_accumulation_follows_from_the_micro_batch(
    world: int, batch: int, micro_batch: int | None, split: tuple[int, int, int]
) -> None:
    found = RunConfig(global_batch=batch, micro_batch=micro_batch).batch_split(world)
    assert (found.per_rank, found.micro_batch, found.accumulation) == split


def test_override_values_are_parsed_as_json_or_else_text() -> None:
    arguments = [
        "--epochs=3",
        "--optimizer.name=sgd",
        "--optimizer.lr=.5",
        "--data.shuffle=false",
        "--task.a.b=[1]",
    ]
    assert read_overrides(arguments) == {
        "epochs": 3,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "data": {"shuffle": False},
        "task": {"a": {"b": [1]}},
    }
    for wrong in ("epochs=3", "--epochs", "--=3"):
        with pytest.raises(InputError, match="must have the form"):
            read_overrides([wrong])


def test_config_is_read_from_json_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"epochs": 2}')
    assert read_document(str(path)) == read_document(' {"epochs": 2}') == {"epochs": 2}
    path.write_text("[1]")
    for wrong in (str(path), str(tmp_path / "none.json"), "{", str(tmp_path)):
        with pytest.raises(InputError):
            read_document(wrong)


def test_config_argument_overrides_the_environment() -> None:
    environment = environment_document(
        {
            "DDP_CHECKPOINT_DIR": "7",
            "DDP_CHECKPOINT_EVERY_STEPS": "7",
            "DDP_CHECKPOINT_KEEP": "",
            "DDP_CHECKPOINT_START_OVER": "true",
        }
    )
    config = resolve(merge(environment, {"checkpoint": {"every_steps": 9}}))
    assert config.checkpoint.directory == "7"
    assert config.checkpoint.every_steps == 9
    assert config.checkpoint.keep == 3
    assert config.checkpoint.start_over is True
    with pytest.raises(InputError, match="every_seconds must be a valid integer"):
        resolve(environment_document({"DDP_CHECKPOINT_EVERY_SECONDS": "x"}))


def test_resolved_configuration_is_unchanged_when_resolved_again() -> None:
    config = resolve({"epochs": 3, "optimizer": {"lr": 0.1}})
    document = json.loads(json.dumps(config.model_dump(mode="json")))
    assert resolve(document) == config


def test_every_setting_of_the_loop_has_a_description() -> None:
    lines = describe().splitlines()
    assert len(lines) > 40
    assert all(line.strip().endswith(".") for line in lines[1::2])


def test_settings_module_does_not_import_torch() -> None:
    modules = "sys, ddp_trainer.config.settings, ddp_trainer.commands.main"
    code = f"import {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
