"""The worker pod: its metadata, its mounts, and the fields that a job can change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.pod import build_pod, with_secrets
from ddp_operator.builders.pod_spec import GPU_RESOURCE, LOST_NODE_SECONDS
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.pod_view import view_pod
from ddp_wire import contract
from ddp_wire.signatures import random_text
from tests.operator.support import DEFAULTS, UID, active_job, new_job

SECRET, JOB_SECRET = random_text(), random_text()
GOLDEN = Path(__file__).parent


def build(index: int = 0, attempt: int = 1, **spec: Any) -> dict[str, Any]:
    return build_pod(new_job(**spec), index, attempt, DEFAULTS)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = pod["spec"]["containers"]
    assert len(found) == 1
    return found[0]


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the volumes by mount path."""
    sources = {v["name"]: v for v in pod["spec"]["volumes"]}
    return {m["mountPath"]: sources[m["name"]] for m in container(pod)["volumeMounts"]}


def test_pod_matches_the_golden_manifest() -> None:
    pod = build(
        1,
        3,
        nodes=2,
        procsPerNode=2,
        gpusPerNode=2,
        config={"epochs": 20, "global_batch": 256},
        env=[{"name": "LR", "value": "0.1"}],
        resources={"requests": {"cpu": 4, "memory": "16Gi"}},
        checkpoint={"claimName": "training-shared", "everySteps": 100, "startOver": True},
        network={"interface": "eth0", "ncclDebug": "Info"},
        nodeSelector={"pool": "gpu"},
    )
    golden = (GOLDEN / "golden.yaml").read_text(encoding="utf-8")
    assert yaml.safe_dump(json.loads(json.dumps(pod)), sort_keys=False, width=100) == golden


def test_pod_has_its_index_attempt_and_spec_hash() -> None:
    job = new_job(nodes=12)
    metadata = build_pod(job, 7, 4, DEFAULTS)["metadata"]
    assert metadata["name"] == "digits-7"
    assert metadata["namespace"] == "team-a"
    assert metadata["labels"][contract.LABEL_NODE_INDEX] == "7"
    assert metadata["labels"][contract.LABEL_JOB_UID] == UID
    assert metadata["annotations"][contract.ANNOTATION_ATTEMPT] == "4"
    assert metadata["annotations"][contract.ANNOTATION_SPEC_HASH] == job.spec_hash
    assert [o["uid"] for o in metadata["ownerReferences"]] == [UID]


def test_pod_has_the_dns_name_that_its_peers_use() -> None:
    spec = build(1, nodes=2)["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("digits-0001", "digits")


def test_downward_api_copies_the_attempt_annotation_into_a_file() -> None:
    pod = build()
    volume = mounts(pod)[contract.POD_INFO_DIR]
    assert volume["downwardAPI"]["items"] == [
        {
            "path": contract.ATTEMPT_FILE,
            "fieldRef": {"fieldPath": f"metadata.annotations['{contract.ANNOTATION_ATTEMPT}']"},
        }
    ]


def test_container_never_restarts_without_a_new_attempt() -> None:
    assert build()["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [({}, 60), ({"podTemplate": {"spec": {"terminationGracePeriodSeconds": 600}}}, 600)],
)
def test_agent_knows_the_grace_period_of_its_pod(changes: dict[str, Any], seconds: int) -> None:
    pod = build(**changes)
    assert pod["spec"]["terminationGracePeriodSeconds"] == seconds
    variables = {one["name"]: one.get("value") for one in container(pod)["env"]}
    assert variables[contract.Env.GRACE_SECONDS] == str(seconds)


def test_probes_call_the_agent() -> None:
    worker = container(build())
    assert worker["ports"] == [
        {"name": "agent", "containerPort": contract.AGENT_PORT},
        {"name": "barrier", "containerPort": contract.BARRIER_PORT},
    ]
    assert worker["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "agent"}
    assert worker["readinessProbe"]["periodSeconds"] == 1
    assert worker["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "agent"}


@pytest.mark.parametrize(
    ("spec", "image", "policy"),
    [
        ({}, "registry.example/default:1", "Always"),
        ({"image": "mine:2"}, "mine:2", "Always"),
        ({"image": "mine:2", "imagePullPolicy": "Never"}, "mine:2", "Never"),
    ],
    ids=["defaults", "image of the job", "image and policy of the job"],
)
def test_image_of_the_job_overrides_the_default(
    spec: dict[str, Any], image: str, policy: str
) -> None:
    defaults = Defaults("registry.example/default:1", "Always")
    worker = container(build_pod(new_job(**spec), 0, 1, defaults))
    assert (worker["image"], worker["imagePullPolicy"]) == (image, policy)


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        ({}, {}),
        ({"gpusPerNode": 8}, {"limits": {GPU_RESOURCE: 8}}),
        ({"resources": {"requests": {"cpu": 4}}}, {"requests": {"cpu": 4}}),
        (
            {"gpusPerNode": 2, "resources": {"limits": {"memory": "1Gi", GPU_RESOURCE: 5}}},
            {"limits": {"memory": "1Gi", GPU_RESOURCE: 2}},
        ),
    ],
    ids=["none", "GPUs", "CPU", "gpusPerNode overrides resources"],
)
def test_gpus_are_added_to_the_resource_limits(
    spec: dict[str, Any], resources: dict[str, Any]
) -> None:
    assert container(build(**spec))["resources"] == resources


def test_job_with_a_checkpoint_mounts_its_claim() -> None:
    found = mounts(build(checkpoint={"claimName": "shared"}))
    assert found[contract.CHECKPOINT_MOUNT]["persistentVolumeClaim"] == {"claimName": "shared"}


def test_pod_without_a_checkpoint_mounts_no_claim() -> None:
    assert set(mounts(build())) == {contract.POD_INFO_DIR, "/tmp", "/dev/shm"}


def test_shared_memory_volume_replaces_the_64_mib_default() -> None:
    assert mounts(build())["/dev/shm"]["emptyDir"] == {"medium": "Memory"}


def test_shared_memory_has_the_size_of_the_job_or_else_of_the_installation() -> None:
    def size(defaults: Defaults, **spec: Any) -> Any:
        pod = build_pod(new_job(**spec), 0, 1, defaults)
        return mounts(pod)["/dev/shm"]["emptyDir"].get("sizeLimit")

    installed = replace(DEFAULTS, shared_memory="8Gi")
    assert size(DEFAULTS, sharedMemory="16Gi") == "16Gi"
    assert size(installed, sharedMemory="16Gi") == "16Gi"
    assert size(installed) == "8Gi"


def test_rdma_devices_are_limits_beside_those_of_the_job() -> None:
    rdma = {"resource": "rdma/hca", "count": 8}
    pod = build(gpusPerNode=8, resources={"limits": {"memory": "1Gi"}}, network={"rdma": rdma})
    limits = {"memory": "1Gi", GPU_RESOURCE: 8, "rdma/hca": 8}
    assert container(pod)["resources"]["limits"] == limits


def test_volumes_of_the_job_are_mounted_at_their_paths() -> None:
    pod = build(
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "d", "readOnly": True}}],
        volumeMounts=[{"name": "data", "mountPath": "/data", "subPath": "a", "readOnly": True}],
    )
    assert mounts(pod)["/data"]["persistentVolumeClaim"] == {"claimName": "d", "readOnly": True}
    assert container(pod)["volumeMounts"][-1] == {
        "name": "data",
        "mountPath": "/data",
        "subPath": "a",
        "readOnly": True,
    }


def test_scheduling_fields_of_the_job_are_copied_to_the_pod() -> None:
    scheduling: dict[str, Any] = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
    }
    spec = build(**scheduling, imagePullSecrets=["registry"])["spec"]
    tolerations = scheduling.pop("tolerations")
    assert scheduling.items() <= spec.items()
    assert spec["tolerations"][: len(tolerations)] == tolerations
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_pod_manifest_omits_keys_without_a_value() -> None:
    def empty(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return [e for k, v in value.items() for e in empty(v, f"{path}.{k}")]
        if isinstance(value, list):
            return [e for i, v in enumerate(value) for e in empty(v, f"{path}.{i}")]
        return [path] if value is None else []

    pod = build(env=[{"name": "A"}], volumes=[{"name": "d", "emptyDir": {}}])
    assert empty(pod, "pod") == []
    optional = {"nodeSelector", "priorityClassName", "imagePullSecrets"}
    assert not optional & pod["spec"].keys()
    assert "podTemplate" not in pod


LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def test_pod_tolerates_a_lost_node_for_5_s() -> None:
    found = {t["key"]: t for t in build()["spec"]["tolerations"]}
    assert tuple(found) == LOST_NODE
    assert {t["tolerationSeconds"] for t in found.values()} == {LOST_NODE_SECONDS}
    assert {(t["operator"], t["effect"]) for t in found.values()} == {("Exists", "NoExecute")}


def test_overlay_keeps_the_tolerations_for_a_lost_node() -> None:
    """Without the tolerations a pod of a lost Kubernetes node would stay for 300 s."""
    mine = {"key": "gpu", "operator": "Exists"}
    found = build(podTemplate={"spec": {"tolerations": [mine]}})["spec"]["tolerations"]
    assert found[0] == mine
    assert tuple(t["key"] for t in found[1:]) == LOST_NODE


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"key": LOST_NODE[1], "operator": "Exists", "tolerationSeconds": 90}, [LOST_NODE[0]]),
        ({"operator": "Exists"}, []),
    ],
)
def test_tolerations_of_the_job_are_kept(given: dict[str, Any], added: list[str]) -> None:
    found = build(tolerations=[given])["spec"]["tolerations"]
    assert found[0] == given
    assert [t["key"] for t in found[1:]] == added


def test_secrets_are_the_last_variables_of_the_worker_and_of_no_other_container() -> None:
    sidecar = {"containers": [{"name": "proxy", "image": "proxy:1"}]}
    job = active_job(podTemplate={"spec": sidecar})
    pod = build_pod(job, 0, 1, DEFAULTS)
    signed = with_secrets(pod, SECRET, JOB_SECRET)
    worker, proxy = signed["spec"]["containers"]
    assert worker["env"][-2:] == [
        {"name": "DDP_AGENT_SECRET", "value": SECRET},
        {"name": "DDP_JOB_SECRET", "value": JOB_SECRET},
    ]
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert proxy == {
        "name": "proxy",
        "image": "proxy:1",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": restricted,
    }
    assert with_secrets(build_pod(job, 0, 1, DEFAULTS), SECRET, JOB_SECRET) == signed
    for seen in (signed, keep_used_fields("Pod", {**signed, "metadata": signed["metadata"]})):
        view = view_pod({**seen, "metadata": {**signed["metadata"], "uid": "u"}})
        assert (view.secret, view.job_secret) == (SECRET, JOB_SECRET)
        assert SECRET not in repr(view)
        assert JOB_SECRET not in repr(view)


def test_user_can_disable_the_prometheus_annotations_of_a_pod() -> None:
    overlay = {"metadata": {"annotations": {"prometheus.io/scrape": "false"}}}
    annotations = build(podTemplate=overlay)["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "false"
    assert annotations["prometheus.io/port"] == "8470"


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/tmp"])
@pytest.mark.parametrize("where", ["spec", "podTemplate"])
def test_mount_of_the_job_replaces_a_scratch_directory(where: str, path: str) -> None:
    volume = {"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    mount = {"name": "mine", "mountPath": path}
    if where == "spec":
        job = active_job(volumes=[volume], volumeMounts=[mount])
    else:
        worker = {"name": contract.WORKER_CONTAINER, "volumeMounts": [mount]}
        job = active_job(podTemplate={"spec": {"volumes": [volume], "containers": [worker]}})
    spec = build_pod(job, 0, 1, DEFAULTS)["spec"]
    found = [(m["mountPath"].rstrip("/"), m["name"]) for m in spec["containers"][0]["volumeMounts"]]
    assert len(dict(found)) == len(found)
    assert dict(found)[path.rstrip("/")] == "mine"
    assert volume in spec["volumes"]


def test_overlay_cannot_replace_the_agent_or_its_variables() -> None:
    plain = container(build())
    changes = {
        "name": "worker",
        "command": ["touch", "/x"],
        "args": ["--quiet"],
        "env": [
            {"name": "DDP_AGENT_BIND", "value": "192.0.2.1"},
            {"name": "DDP_AGENT_PORT", "value": "1"},
            {"name": "MINE", "value": "yes"},
        ],
    }
    changed = container(build(podTemplate={"spec": {"containers": [changes]}}))
    assert (changed["command"], "args" in changed) == (plain["command"], False)
    assert {"name": "MINE", "value": "yes"} in changed["env"]
    assert [one for one in changed["env"] if one["name"] != "MINE"] == plain["env"]
    emptied = {"name": "worker", "env": []}
    assert container(build(podTemplate={"spec": {"containers": [emptied]}}))["env"] == plain["env"]
