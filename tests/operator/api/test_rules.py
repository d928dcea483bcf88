"""Tests of the rules between fields."""

import subprocess
from typing import Any

import pytest

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.api.rules import (
    MAX_NAME_LENGTH,
    NAME_RULE_MESSAGE,
    SPEC_RULES,
)
from ddp_operator.api.sizes import LONGEST_VARIABLE
from ddp_operator.api.spec import RESERVED_POD_FIELDS
from tests.operator.schema_tools import server_accepts
from tests.operator.support import job_manifest, new_job

TASK = "my_package.flowers:build"

BROKEN: dict[str, dict[str, Any]] = {
    "spec: task and command must not both be set": {
        "task": TASK,
        "command": ["python", "a.py"],
    },
    "spec: one of task and command must be set": {},
    "spec.config: may be set only with task; a command takes args": {
        "command": ["a"],
        "config": {"x": 1},
    },
    "spec.args: may be set only with command; a task takes config": {"task": TASK, "args": ["--x"]},
    "spec.env: names must not begin with DDP_, because ddp-trainer reserves this prefix": {
        "task": TASK,
        "env": [{"name": "FINE"}, {"name": "DDP_ATTEMPT", "value": "9"}],
    },
    "spec.volumes: names must not begin with ddp-, because ddp-trainer reserves this prefix": {
        "task": TASK,
        "volumes": [{"name": "ddp-tmp", "emptyDir": {}}],
    },
    "spec.volumeMounts: each name must be the name of one of spec.volumes": {
        "task": TASK,
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "dat", "mountPath": "/data"}],
    },
    "spec.restartWindowSeconds: requires spec.maxRestarts of at most 30": {
        "task": TASK,
        "restartWindowSeconds": 3600,
        "maxRestarts": 31,
    },
    **{
        f"spec.podTemplate.spec.{field}: must not be set, because the operator sets it": {
            "task": TASK,
            "podTemplate": {"spec": {field: "Always", "hostIPC": False}},
        }
        for field in RESERVED_POD_FIELDS
    },
    "spec.gang.queue: may be set only with type Volcano, because the others have no queues": {
        "task": TASK,
        "gang": {"type": "Native", "queue": "research"},
    },
    **{
        f"spec.podTemplate.metadata.{kind}[{key}]: must not be set with spec.gang, which sets the"
        " group of the pods": {
            "task": TASK,
            "gang": {"type": gang},
            "podTemplate": {"metadata": {kind: {key: "mine"}}},
        }
        for kind, key, gang in (
            ("annotations", "scheduling.k8s.io/group-name", "Volcano"),
            ("annotations", "kueue.x-k8s.io/pod-group-name", "Native"),
            ("labels", "kueue.x-k8s.io/pod-group-name", "Coscheduling"),
            ("labels", "kueue.x-k8s.io/queue-name", "Native"),
            ("labels", "scheduling.x-k8s.io/pod-group", "Coscheduling"),
        )
    },
}


def error_of(manifest: dict[str, Any]) -> str:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(manifest)
    return str(caught.value)


@pytest.mark.parametrize(("message", "spec"), BROKEN.items(), ids=BROKEN.keys())
def test_broken_rule_gives_its_message(message: str, spec: dict[str, Any]) -> None:
    assert error_of({**job_manifest(), "spec": spec}) == message


def test_table_has_one_broken_spec_for_every_rule() -> None:
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
        "prefix inside a name",
        "volume without mount",
        "window with 30 restarts",
        "window with the default restarts",
        "31 restarts without a window",
    ],
)
def test_job_that_breaks_no_rule_is_accepted(spec: dict[str, Any]) -> None:
    assert new_job(**spec).spec.nodes == 1


@pytest.mark.parametrize(
    "name",
    ["a", "digits", "d-1", "a" * MAX_NAME_LENGTH],
)
def test_name_that_leaves_room_for_pod_numbers_is_accepted(name: str) -> None:
    assert new_job(name).metadata.name == name


@pytest.mark.parametrize(
    "name",
    ["a" * (MAX_NAME_LENGTH + 1), "1digits", "Digits", "di.gits", "digits-", "-digits", "digits\n"],
    ids=["too long", "digit first", "upper case", "dot", "dash last", "dash first", "line break"],
)
def test_name_that_cannot_name_pods_is_rejected_with_the_reason(name: str) -> None:
    error = error_of(job_manifest(name))
    assert error == f"{NAME_RULE_MESSAGE}, got {name!r}"


def test_longest_pod_name_is_a_dns_label_of_63_characters() -> None:
    assert MAX_NAME_LENGTH + len("-9998") == 63


LONG = "x" * 4096


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"task": TASK, "config": {"task": {"names": "x" * 140_000}}},
            (
                "spec.config: must have at most 131,060 bytes, because Linux starts no program with"
                " a longer environment variable, got 140,021"
            ),
        ),
        (
            {"command": ["python"], "args": [LONG] * 32},
            (
                "spec: command and args: must have at most 131,059 bytes, because Linux starts no"
                " program with a longer environment variable, got 131,210"
            ),
        ),
        (
            {"task": TASK, "env": [{"name": "TEXT", "value": "\U0001f600" * 32_766}]},
            None,
        ),
        (
            {"task": TASK, "env": [{"name": "TEXT", "value": "\U0001f600" * 32_768}]},
            (
                "spec.env: TEXT: must have at most 131,066 bytes, because Linux starts no program"
                " with a longer environment variable, got 131,072"
            ),
        ),
        (
            {
                "task": TASK,
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {"name": "worker", "env": [{"name": 1}, {"name": "A", "value": "x"}]},
                            {"name": "b", "env": [{"name": "TEXT", "value": "x" * 131_067}]},
                        ]
                    }
                },
            },
            (
                "spec.podTemplate.spec.containers: TEXT: must have at most 131,066 bytes, because"
                " Linux starts no program with a longer environment variable, got 131,067"
            ),
        ),
    ],
    ids=["config", "args", "longest variable", "variable", "overlay"],
)
def test_value_with_which_no_program_can_start_is_refused(
    spec: dict[str, Any], sentence: str | None
) -> None:
    manifest = job_manifest(**spec)
    if sentence is None:
        assert parse_job(manifest).spec.env is not None
    else:
        assert error_of(manifest) == sentence


def test_longest_variable_is_that_of_linux() -> None:
    def start(size: int) -> None:
        env = {"A": "x" * (size - len("A="))}
        subprocess.run(["/bin/true"], env=env, check=True)

    start(LONGEST_VARIABLE)
    with pytest.raises(OSError, match="too long"):
        start(LONGEST_VARIABLE + 1)


@pytest.mark.parametrize("name", ["../../x", "/abs", "a/b", "..", "A", "a_b", "a b", ""])
@pytest.mark.parametrize(
    "field", ["checkpoint", "volume", "mount", "pull secret", "priority class"]
)
def test_name_that_is_no_name_of_kubernetes_is_refused(field: str, name: str) -> None:
    volumes = [{"name": "data", "emptyDir": {}}]
    specs: dict[str, dict[str, Any]] = {
        "checkpoint": {"checkpoint": {"claimName": name}},
        "volume": {"volumes": [{"name": name, "emptyDir": {}}]},
        "mount": {"volumes": volumes, "volumeMounts": [{"name": name, "mountPath": "/a"}]},
        "pull secret": {"imagePullSecrets": [name]},
        "priority class": {"priorityClassName": name},
    }
    manifest = job_manifest(**specs[field])
    assert error_of(manifest).startswith("spec.")
    assert not server_accepts("spec", manifest["spec"])
