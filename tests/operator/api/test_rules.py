"""Rules that span fields: each, broken once, gives its sentence."""

from typing import Any

import pytest

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.rules import NAME_LENGTH, NAME_RULE_MESSAGE, SPEC_RULES
from tests.operator.support import job_manifest, new_job

TASK = "my_package.flowers:build"

BROKEN: dict[str, dict[str, Any]] = {
    "spec: task and command exclude each other, state one of them": {
        "task": TASK,
        "command": ["python", "a.py"],
    },
    "spec: one of task and command must be stated": {},
    "spec.config: goes with task, a command takes args": {"command": ["a"], "config": {"x": 1}},
    "spec.args: goes with command, a task takes config": {"task": TASK, "args": ["--x"]},
    "spec.env: names that begin with DDP_ belong to ddp-trainer": {
        "task": TASK,
        "env": [{"name": "FINE"}, {"name": "DDP_ATTEMPT", "value": "9"}],
    },
    "spec.volumes: names that begin with ddp- belong to ddp-trainer": {
        "task": TASK,
        "volumes": [{"name": "ddp-tmp", "emptyDir": {}}],
    },
    "spec.volumeMounts: each must name one of spec.volumes": {
        "task": TASK,
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "dat", "mountPath": "/data"}],
    },
    "spec.restartWindowSeconds: needs spec.maxRestarts of at most 30": {
        "task": TASK,
        "restartWindowSeconds": 3600,
        "maxRestarts": 31,
    },
}


def refusal(manifest: dict[str, Any]) -> str:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(manifest)
    return str(caught.value)


@pytest.mark.parametrize(("sentence", "spec"), BROKEN.items(), ids=BROKEN.keys())
def test_a_broken_rule_gives_its_sentence(sentence: str, spec: dict[str, Any]) -> None:
    assert refusal({**job_manifest(), "spec": spec}) == sentence


def test_every_rule_is_broken_once_in_this_file() -> None:
    assert [rule.message for rule in SPEC_RULES] == list(BROKEN)


@pytest.mark.parametrize(
    "spec",
    [
        {"task": TASK, "config": {"epochs": 1}},
        {"command": ["python", "a.py"], "args": ["--x"]},
        {"task": TASK, "env": [{"name": "MY_DDP_VALUE", "value": "1"}]},
        {
            "task": TASK,
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        {"task": TASK, "restartWindowSeconds": 60, "maxRestarts": 30},
        {"task": TASK, "restartWindowSeconds": 60},
        {"task": TASK, "maxRestarts": 31},
    ],
    ids=[
        "task with config",
        "command with args",
        "prefix inside",
        "volume without mount",
        "window with 30 restarts",
        "window with the default",
        "31 restarts without a window",
    ],
)
def test_a_job_that_breaks_no_rule_is_read(spec: dict[str, Any]) -> None:
    assert new_job(**spec).spec.nodes == 1


@pytest.mark.parametrize(
    "name",
    ["a", "digits", "d-1", "a" * NAME_LENGTH],
)
def test_a_name_that_fits_a_dns_label_with_pod_numbers_is_taken(name: str) -> None:
    assert new_job(name).metadata.name == name


@pytest.mark.parametrize(
    "name",
    ["a" * (NAME_LENGTH + 1), "1digits", "Digits", "di.gits", "digits-", "-digits", "digits\n"],
    ids=["too long", "digit first", "upper case", "dot", "dash last", "dash first", "line break"],
)
def test_a_name_that_cannot_name_pods_is_refused_with_the_reason(name: str) -> None:
    said = refusal(job_manifest(name))
    assert said == f"{NAME_RULE_MESSAGE}, got {name!r}"


def test_the_longest_name_with_four_digits_is_a_dns_label() -> None:
    assert NAME_LENGTH + len("-9998") == 63
