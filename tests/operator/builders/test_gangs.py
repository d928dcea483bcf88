"""Tests of the group object and the pod fields that each gang scheduler needs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs import versions
from ddp_operator.builders.gangs.quantities import pod_requests, times
from ddp_operator.builders.gangs.schedulers import build_group, new_gang, recorded_gang
from ddp_operator.builders.gangs.versions import KNOWN_VERSIONS, Gangs, choose_version
from ddp_operator.builders.kinds import KINDS, kinds_in_use, row_name
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.children import fresh_pods
from tests.operator.support import DEFAULTS, new_job, with_status

TYPES = {version: gang for gang, known in KNOWN_VERSIONS.items() for version in known}
GANG = {"gang": {"minCount": 3}}
SPECS: dict[str, dict[str, Any]] = {
    versions.NATIVE_1_35: {"podGroups": [{"name": "workers", "policy": GANG}]},
    versions.NATIVE_1_36: {
        "schedulingPolicy": GANG,
        "disruptionMode": "PodGroup",
        "priorityClassName": "high",
    },
    versions.NATIVE_1_37: {
        "schedulingPolicy": GANG,
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
    },
    versions.VOLCANO: {
        "minMember": 3,
        "queue": "research",
        "minResources": {"cpu": "4500m", "memory": "6442450944", "nvidia.com/gpu": "24"},
        "priorityClassName": "high",
    },
    versions.COSCHEDULING: {"minMember": 3},
}
"""Spec of the group object of `job_with`, by API version."""
KINDS_OF = dict.fromkeys(SPECS, "PodGroup") | {versions.NATIVE_1_35: "Workload"}


def defaults_of(api_version: str, **more: Any) -> Defaults:
    """Return the defaults of an installation whose API server serves one kind of group."""
    gang = TYPES[api_version]
    return replace(DEFAULTS, gangs=Gangs(types=(gang,), served=((gang, api_version),), **more))


def job_with(defaults: Defaults, gang: GangType, **spec: Any) -> DDPJob:
    """Return a job of three nodes after the status of its first attempt was written."""
    queue = {"queue": "research"} if gang is GangType.VOLCANO else {}
    given: dict[str, Any] = {
        "nodes": 3,
        "gpusPerNode": 8,
        "priorityClassName": "high",
        "resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        "gang": {"type": gang, **queue},
    }
    job = new_job(**(given | spec))
    return with_status(job, attempt=1, pods=fresh_pods(job, defaults))


@pytest.mark.parametrize("api_version", SPECS)
def test_group_of_an_elastic_job_needs_its_smallest_size(api_version: str) -> None:
    defaults = defaults_of(api_version)
    job = job_with(defaults, TYPES[api_version], elastic={"minNodes": 2}, spares=1)
    gang = recorded_gang(job)
    assert gang is not None
    assert gang.size == 2
    text = json.dumps(build_group(job, gang, build_pod(job, 0, 1, defaults))["spec"])
    assert '"minCount": 2' in text or '"minMember": 2' in text


@pytest.mark.parametrize("api_version", SPECS)
def test_edit_of_the_smallest_size_leaves_the_group_alone(api_version: str) -> None:
    """Kubernetes refuses to change the size of a group object."""
    defaults = defaults_of(api_version)
    job = job_with(defaults, TYPES[api_version], elastic={"minNodes": 2})
    elastic = job.spec.elastic
    assert elastic is not None
    fewer = job.spec.model_copy(update={"elastic": elastic.model_copy(update={"min_nodes": 1})})
    edited = job.model_copy(update={"spec": fewer})
    gang = recorded_gang(job)
    assert gang is not None
    pod = build_pod(job, 0, 1, defaults)
    assert build_group(edited, gang, pod) == build_group(job, gang, pod)


@pytest.mark.parametrize("api_version", SPECS)
def test_pods_outside_the_gang_have_no_mark_and_may_have_a_lower_priority(
    api_version: str,
) -> None:
    defaults = defaults_of(api_version)
    more = {"elastic": {"minNodes": 2}, "spares": 1, "sparePriorityClassName": "low"}
    job = job_with(defaults, TYPES[api_version], **more)
    pods = [build_pod(job, index, 1, defaults) for index in range(4)]
    assert [pod["spec"]["priorityClassName"] for pod in pods] == ["high", "high", "low", "low"]
    plain = job_with(DEFAULTS, GangType.NONE, **more)
    for index in (2, 3):
        pods[index]["metadata"]["annotations"].pop("ddp-trainer.dev/spec-hash")
        pod = build_pod(plain, index, 1, DEFAULTS)
        pod["metadata"]["annotations"].pop("ddp-trainer.dev/spec-hash")
        assert pods[index] == pod | {"spec": pod["spec"] | {"priorityClassName": "low"}}


def test_only_spares_have_another_priority_without_a_gang() -> None:
    more = {"elastic": {"minNodes": 2}, "spares": 1, "sparePriorityClassName": "low"}
    job = job_with(DEFAULTS, GangType.NONE, **more)
    pods = [build_pod(job, index, 1, DEFAULTS) for index in range(4)]
    assert [p["spec"]["priorityClassName"] for p in pods] == ["high", "high", "high", "low"]


@pytest.mark.parametrize("api_version", SPECS)
def test_group_object_has_the_form_of_its_gang_scheduler(api_version: str) -> None:
    defaults = defaults_of(api_version)
    job = job_with(defaults, TYPES[api_version])
    gang = recorded_gang(job)
    assert gang is not None
    group = build_group(job, gang, build_pod(job, 0, 1, defaults))
    assert group == {
        "apiVersion": api_version,
        "kind": KINDS_OF[api_version],
        "metadata": {
            "name": "digits-1",
            "namespace": "team-a",
            "labels": names.labels(job),
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": SPECS[api_version],
    }
    row = KINDS[row_name(group)]
    assert row.api_version == api_version
    assert row in kinds_in_use(defaults)
    assert row not in kinds_in_use(DEFAULTS)


MARKS: dict[str, dict[str, Any]] = {
    versions.NATIVE_1_35: {
        "spec": {"workloadRef": {"name": "digits-1", "podGroup": "workers"}},
    },
    versions.NATIVE_1_36: {"spec": {"schedulingGroup": {"podGroupName": "digits-1"}}},
    versions.NATIVE_1_37: {"spec": {"schedulingGroup": {"podGroupName": "digits-1"}}},
    versions.VOLCANO: {
        "spec": {"schedulerName": "volcano"},
        "annotations": {"scheduling.k8s.io/group-name": "digits-1"},
    },
    versions.COSCHEDULING: {
        "spec": {"schedulerName": "batch-scheduler"},
        "labels": {"scheduling.x-k8s.io/pod-group": "digits-1"},
    },
}


@pytest.mark.parametrize("api_version", SPECS)
@pytest.mark.parametrize("overlay", [None, {"spec": {"nodeSelector": {"a": "b"}}}])
def test_pod_has_the_fields_that_its_gang_scheduler_needs(
    api_version: str, overlay: dict[str, Any] | None
) -> None:
    defaults = defaults_of(api_version, coscheduling_scheduler="batch-scheduler")
    more = {} if overlay is None else {"podTemplate": overlay}
    job = job_with(defaults, TYPES[api_version], **more)
    plain = build_pod(job_with(DEFAULTS, GangType.NONE, **more), 1, 1, DEFAULTS)
    marked = build_pod(job, 1, 1, defaults)
    marks = {"ddp-trainer.dev/gang-group": "digits-1", "ddp-trainer.dev/spec-hash": job.spec_hash}
    wanted = MARKS[api_version]
    assert marked["spec"] == plain["spec"] | wanted["spec"]
    assert marked["metadata"]["labels"] == plain["metadata"]["labels"] | wanted.get("labels", {})
    annotations = plain["metadata"]["annotations"] | marks | wanted.get("annotations", {})
    assert marked["metadata"]["annotations"] == annotations


@pytest.mark.parametrize("api_version", [versions.VOLCANO, versions.COSCHEDULING])
def test_scheduler_of_the_job_precedes_that_of_the_installation(api_version: str) -> None:
    defaults = defaults_of(api_version, coscheduling_scheduler="batch-scheduler")
    overlay = {"podTemplate": {"spec": {"schedulerName": "mine"}}}
    job = job_with(defaults, TYPES[api_version], **overlay)
    assert build_pod(job, 0, 1, defaults)["spec"]["schedulerName"] == "mine"


@pytest.mark.parametrize("api_version", [versions.VOLCANO, versions.COSCHEDULING])
def test_overlay_that_names_no_scheduler_takes_none_away(api_version: str) -> None:
    defaults = defaults_of(api_version, coscheduling_scheduler="batch-scheduler")
    overlay = {"podTemplate": {"spec": {"schedulerName": None}}}
    job = job_with(defaults, TYPES[api_version], **overlay)
    assert build_pod(job, 0, 1, defaults)["spec"]["schedulerName"] in {"volcano", "batch-scheduler"}


def test_coscheduling_uses_the_default_scheduler_if_the_installation_names_none() -> None:
    defaults = defaults_of(versions.COSCHEDULING)
    job = job_with(defaults, GangType.COSCHEDULING)
    assert "schedulerName" not in build_pod(job, 0, 1, defaults)["spec"]


def test_pod_has_no_gang_field_that_the_api_server_would_drop() -> None:
    """After an upgrade, the API server may not serve the version of the recorded group object."""
    old, new = defaults_of(versions.NATIVE_1_35), defaults_of(versions.NATIVE_1_36)
    job = job_with(old, GangType.NATIVE)
    pod = build_pod(job, 0, 1, new)
    assert "ddp-trainer.dev/gang-group" not in pod["metadata"]["annotations"]
    assert not {"workloadRef", "schedulingGroup"} & pod["spec"].keys()


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [
        (None, GangType.NONE, None),
        (None, GangType.VOLCANO, ("Volcano", "shared")),
        ({"type": "None"}, GangType.VOLCANO, None),
        ({"type": "Volcano"}, GangType.NONE, ("Volcano", "shared")),
        ({"type": "Volcano", "queue": "mine"}, GangType.NONE, ("Volcano", "mine")),
        ({"type": "Coscheduling"}, GangType.VOLCANO, None),
    ],
)
def test_gang_settings_of_a_job_fall_back_to_those_of_the_installation(
    given: dict[str, str] | None, default: GangType, expected: tuple[str, str] | None
) -> None:
    gangs = Gangs(
        types=(GangType.VOLCANO,),
        default=default,
        queue="shared",
        served=((GangType.VOLCANO, versions.VOLCANO),),
    )
    spec: dict[str, Any] = {"gang": given} if given else {}
    found = new_gang(new_job(**spec), gangs)
    assert (found and (found.type, found.queue)) == expected


def test_pods_that_are_created_together_get_a_new_group() -> None:
    defaults = defaults_of(versions.NATIVE_1_37)
    job = with_status(job_with(defaults, GangType.NATIVE), attempt=7)
    gang = new_gang(job, defaults.gangs)
    assert gang is not None
    assert gang.group == "digits-8"


@pytest.mark.parametrize(
    ("gang", "served", "chosen"),
    [
        (GangType.NATIVE, ["scheduling.k8s.io/v1"], None),
        (GangType.NATIVE, ["scheduling.k8s.io/v1", versions.NATIVE_1_35], versions.NATIVE_1_35),
        (GangType.NATIVE, ["scheduling.k8s.io/v1", versions.NATIVE_1_36], versions.NATIVE_1_36),
        (
            GangType.NATIVE,
            ["scheduling.k8s.io/v1alpha3", versions.NATIVE_1_37],
            versions.NATIVE_1_37,
        ),
        (GangType.NATIVE, ["scheduling.k8s.io/v1alpha3"], None),
        (GangType.VOLCANO, [], None),
        (GangType.VOLCANO, [versions.VOLCANO], versions.VOLCANO),
        (GangType.COSCHEDULING, [versions.COSCHEDULING], versions.COSCHEDULING),
    ],
)
def test_newest_served_api_version_is_used_for_the_group_object(
    gang: GangType, served: list[str], chosen: str | None
) -> None:
    assert choose_version(gang, served) == chosen


def test_unavailable_gang_type_is_explained() -> None:
    gangs = Gangs(types=(GangType.NATIVE, GangType.VOLCANO))
    assert gangs.why_not(GangType.NONE) is None
    assert "GenericWorkload" in (gangs.why_not(GangType.NATIVE) or "")
    assert "Volcano is not installed" in (gangs.why_not(GangType.VOLCANO) or "")
    offered = "this installation offers None, Native, Volcano"
    assert offered in (gangs.why_not(GangType.COSCHEDULING) or "")
    served = replace(gangs, served=((GangType.VOLCANO, versions.VOLCANO),))
    assert served.why_not(GangType.VOLCANO) is None


def _container(*, cpu: Any = None, memory: Any = None, **more: Any) -> dict[str, Any]:
    requests = {k: v for k, v in {"cpu": cpu, "memory": memory}.items() if v is not None}
    return {"resources": {"requests": requests}, **more}


@pytest.mark.parametrize(
    ("spec", "total"),
    [
        ({"containers": [_container(cpu="500m"), _container(cpu="0.25")]}, {"cpu": "2250m"}),
        ({"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}, {"memory": "3221225472"}),
        ({"containers": [_container(memory="1e3")]}, {"memory": "3000"}),
        ({"containers": [_container(cpu="100u")]}, {"cpu": "1m"}),
        ({"containers": [_container(memory=512), {}]}, {"memory": "1536"}),
        (
            {
                "containers": [_container(cpu=1)],
                "initContainers": [_container(cpu=4), _container(cpu=1, restartPolicy="Always")],
            },
            {"cpu": "15"},
        ),
        ({"containers": [{"resources": "none"}, {"resources": {"limits": []}}]}, {}),
        ({"containers": [_container(cpu="much", memory="NaN")]}, {}),
        ({"containers": "none"}, {}),
    ],
)
def test_group_object_requests_the_resources_of_all_pods(
    spec: dict[str, Any], total: dict[str, str]
) -> None:
    assert times(pod_requests(spec), 3) == total
