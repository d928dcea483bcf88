"""Settings of the bundled loop that the operator refuses before any pod exists."""

from typing import Any

import pytest

from ddp_operator.builders.loop_config import config_error
from tests.operator.support import new_job

COUNTED = {"claimName": "claim"}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"epoch": 3}, 'spec.config: unknown key "epoch"; did you mean "epochs"?'),
        (
            {"optimizer": {"lr": "fast"}},
            'spec.config: optimizer.lr must be a valid number, not "fast"',
        ),
        ({"global_batch": 0}, "spec.config: global_batch must be greater than 0, not 0"),
        (
            {"optimizer": {"name": "sgd", "betas": [0.9, 0.9]}},
            'spec.config: optimizer: "betas" must not be set with sgd, because it has no effect',
        ),
        (
            {"nonfinite": {"policy": "rollback"}},
            "spec.config: nonfinite.policy rollback requires checkpoint.directory",
        ),
    ],
    ids=["key", "type", "bound", "combination", "without a checkpoint"],
)
def test_setting_that_the_training_loop_refuses_is_named(
    config: dict[str, Any], sentence: str
) -> None:
    assert config_error(new_job(config=config)) == sentence


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"config": {"epochs": 20, "global_batch": 256}},
        {"config": {"task": {"widht": 3}}},
        {"config": {"nonfinite": {"policy": "rollback"}}, "checkpoint": COUNTED},
        {"command": ["python", "train.py"]},
    ],
    ids=["none", "valid", "settings of the task", "with a checkpoint", "command"],
)
def test_job_with_valid_or_no_loop_settings_passes(spec: dict[str, Any]) -> None:
    assert config_error(new_job(**spec)) is None


@pytest.mark.parametrize("field", ["image", "command", "args", "env", "envFrom"])
def test_config_of_a_worker_without_the_bundled_loop_is_not_checked(field: str) -> None:
    def job_with(name: str) -> Any:
        overlay = {"containers": [{"name": name, field: "other"}]}
        return new_job(config={"epoch": 3}, podTemplate={"spec": overlay})

    assert config_error(job_with("worker")) is None
    assert config_error(job_with("sidecar")) is not None
