"""The podTemplate overlay merges like a strategic merge patch, but keeps the operator's labels."""

from collections.abc import Callable
from typing import Any

import pytest

from ddp_operator.builders.overlay import apply_overlay
from ddp_operator.builders.pod import build_pod, with_secrets
from ddp_wire import contract
from tests.operator.support import DEFAULTS, new_job


def build(overlay: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return build_pod(new_job(podTemplate=overlay, **spec), 0, 1, DEFAULTS)


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        ({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({}, {"a": {"b": [1]}}, {"a": {"b": [1]}}),
        ([1, 2], [3], [3]),
        (
            [{"name": "a", "v": 1}, {"name": "b"}],
            [{"name": "a", "w": 2}, {"name": "c"}],
            [{"name": "a", "v": 1, "w": 2}, {"name": "b"}, {"name": "c"}],
        ),
        ([{"name": "a"}], [{"key": "gpu"}], [{"key": "gpu"}]),
        ([{"name": "a"}], [], [{"name": "a"}]),
        ([1], [], []),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
        ([{"name": "a"}], [{"name": ["a"]}], [{"name": ["a"]}]),
    ],
    ids=[
        "values replace",
        "objects merge",
        "new keys are added",
        "plain lists replace",
        "named lists merge by name in order",
        "unnamed lists replace",
        "an empty list leaves named items",
        "an empty list replaces a plain one",
        "a value replaces an object",
        "a list with an invalid name replaces",
    ],
)
def test_overlay_merges_values(base: Any, overlay: Any, merged: Any) -> None:
    assert apply_overlay(base, overlay) == merged


def test_overlay_changes_neither_input() -> None:
    base = {"a": {"l": [{"name": "x", "v": 1}]}}
    overlay = {"a": {"l": [{"name": "x", "v": 2}], "m": 1}}
    apply_overlay(base, overlay)
    assert base == {"a": {"l": [{"name": "x", "v": 1}]}}
    assert overlay == {"a": {"l": [{"name": "x", "v": 2}], "m": 1}}


def test_overlay_adds_labels_and_annotations() -> None:
    pod = build({"metadata": {"labels": {"queue": "a"}, "annotations": {"note": "b"}}})
    assert pod["metadata"]["labels"]["queue"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert pod["metadata"]["name"] == "digits-0"


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("labels", contract.LABEL_JOB_UID),
        ("labels", contract.LABEL_JOB_NAME),
        ("labels", contract.LABEL_NODE_INDEX),
        ("labels", contract.LABEL_MANAGED_BY),
        ("annotations", contract.ANNOTATION_ATTEMPT),
        ("annotations", contract.ANNOTATION_SPEC_HASH),
    ],
    ids=lambda v: str(v).rpartition("/")[2],
)
def test_overlay_cannot_change_labels_that_identify_a_pod(part: str, key: str) -> None:
    overlay = {"metadata": {part: {key: "changed"}}}
    job = new_job(podTemplate=overlay)
    pod = build_pod(job, 0, 1, DEFAULTS)
    plain = build_pod(new_job(), 0, 1, DEFAULTS)
    assert pod["metadata"][part][key] != "stolen"
    if key != contract.ANNOTATION_SPEC_HASH:  # The overlay itself is part of the hash.
        assert pod["metadata"][part][key] == plain["metadata"][part][key]


def test_overlay_adds_a_sidecar() -> None:
    pod = build({"spec": {"containers": [{"name": "sync", "image": "sync:1"}]}})
    assert [c["name"] for c in pod["spec"]["containers"]] == ["worker", "sync"]


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("given", "context"),
    [
        (None, RESTRICTED),
        ({"runAsUser": 5, "capabilities": None}, {**RESTRICTED, "runAsUser": 5}),
        ({"privileged": True}, {"privileged": True}),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["SYS_ADMIN"]}}),
    ],
    ids=["none", "null", "privileged", "capability"],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_container_of_the_overlay_has_only_the_privileges_that_it_states(
    kind: str, given: dict[str, Any] | None, context: dict[str, Any]
) -> None:
    sidecar = {"name": "sync", "image": "sync:1", "securityContext": given}
    pod = build({"spec": {kind: [sidecar]}})
    assert pod["spec"][kind][-1]["securityContext"] == context


def test_overlay_cannot_remove_the_restrictions_of_the_worker_by_null() -> None:
    change = {"allowPrivilegeEscalation": None, "capabilities": None}
    pod = build({"spec": {"containers": [{"name": "worker", "securityContext": change}]}})
    assert pod["spec"]["containers"][0]["securityContext"].items() >= RESTRICTED.items()


def test_overlay_changes_the_container_named_worker() -> None:
    change = {"name": "worker", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    worker = build({"spec": {"containers": [change]}})["spec"]["containers"][0]
    assert worker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert worker["securityContext"]["readOnlyRootFilesystem"] is True
    assert worker["command"] == ["python3", "-P", "-m", "ddp_agent"]


def test_overlay_merges_a_volume_by_name_and_keeps_the_rest() -> None:
    pod = build({"spec": {"volumes": [{"name": "ddp-shm", "emptyDir": {"sizeLimit": "1Gi"}}]}})
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    assert volumes["ddp-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert set(volumes) == {"ddp-pod-info", "ddp-tmp", "ddp-shm"}


def test_overlay_keeps_two_mounts_of_one_volume() -> None:
    stated = [
        {"name": "data", "mountPath": "/train", "subPath": "train"},
        {"name": "data", "mountPath": "/test", "subPath": "test"},
    ]
    extra = {"name": "worker", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}
    pod = build(
        {"spec": {"containers": [extra], "volumes": [{"name": "extra", "emptyDir": {}}]}},
        volumes=[{"name": "data", "emptyDir": {}}],
        volumeMounts=stated,
    )
    paths = [m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]]
    assert {"/train", "/test", "/extra"} <= set(paths)


def test_overlay_adds_any_other_pod_spec_field() -> None:
    pod = build({"spec": {"runtimeClassName": "nvidia", "hostNetwork": True}})
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["hostNetwork"] is True
    assert pod["spec"]["restartPolicy"] == "Never"


def test_overlay_without_a_grace_period_leaves_the_default_of_kubernetes() -> None:
    pod = build({"spec": {"terminationGracePeriodSeconds": None}})
    worker = pod["spec"]["containers"][0]
    assert {"name": contract.Env.GRACE_SECONDS, "value": "30"} in worker["env"]


@pytest.mark.parametrize("empty", [None, []], ids=["null", "empty list"])
@pytest.mark.parametrize(
    "overlay",
    [
        lambda empty: {"containers": empty},
        lambda empty: {"containers": [{"name": "worker", "env": empty}]},
        lambda empty: {"containers": [{"name": "worker", "volumeMounts": empty}]},
        lambda empty: {"volumes": empty},
        lambda empty: {"tolerations": empty},
    ],
    ids=["containers", "env", "volumeMounts", "volumes", "tolerations"],
)
def test_empty_list_in_the_overlay_removes_nothing_from_the_pod(
    overlay: Callable[[object], dict[str, Any]], empty: object
) -> None:
    job = new_job(podTemplate={"spec": overlay(empty)})
    plain = build_pod(new_job(podTemplate={"spec": {}}), 0, 1, DEFAULTS)
    assert build_pod(job, 0, 1, DEFAULTS)["spec"] == plain["spec"]


WRONG: list[Any] = [
    None,
    0,
    5,
    True,
    "x",
    "",
    [],
    ["x"],
    [5],
    [None],
    [[]],
    {},
    {"x": 1},
    [{"x": 1}],
]
PLACES: list[Callable[[Any], dict[str, Any]]] = [
    lambda value: {"containers": value},
    lambda value: {"initContainers": value},
    lambda value: {"tolerations": value},
    lambda value: {"tolerations": [{"key": value}]},
    lambda value: {"terminationGracePeriodSeconds": value},
    lambda value: {"containers": [{"name": value}]},
    lambda value: {"containers": [{"name": "worker", "env": value}]},
    lambda value: {"containers": [{"name": "worker", "env": [{"name": value}]}]},
    lambda value: {"containers": [{"name": "worker", "volumeMounts": [{"mountPath": value}]}]},
    lambda value: {"containers": [{"name": "worker", "securityContext": value}]},
    lambda value: {"containers": [{"name": "a", "securityContext": {"capabilities": value}}]},
]
"""Fields of the overlay that the operator itself reads."""


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_overlay_field_of_a_wrong_type_is_left_to_the_api_server(value: object) -> None:
    for place in PLACES:
        pod = build({"spec": place(value)})
        assert with_secrets(pod, "a", "b")["kind"] == "Pod"
