"""The pods of init steps: volumes, command, variables, security and overlay."""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.init_pod import build_init_pod
from ddp_operator.builders.pod import build_pod
from tests.operator.support import DEFAULTS, new_job

FETCH = {
    "name": "fetch",
    "image": "rclone:1",
    "command": ["rclone", "copy"],
    "args": ["a", "/data"],
}
CONVERT = {"name": "convert", "task": "my_package.data:convert"}
DATA: dict[str, Any] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "checkpoint": {"claimName": "shared"},
}


def built(job: DDPJob, index: int = 0, number: int = 3) -> dict[str, Any]:
    assert job.spec.init is not None
    return build_init_pod(job, job.spec.init[index], number, DEFAULTS)


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}


def test_command_runs_in_its_image_with_the_volumes_of_the_workers() -> None:
    job = new_job(init=[FETCH], gpusPerNode=8, resources={"limits": {"cpu": 64}}, **DATA)
    pod, worker = built(job), build_pod(job, 0, 1, DEFAULTS)
    [container] = pod["spec"]["containers"]
    assert container["image"] == "rclone:1"
    assert container["command"] == ["rclone", "copy", "a", "/data"]
    assert container["resources"] == {}
    mounts = [
        m for m in worker["spec"]["containers"][0]["volumeMounts"] if "ddp-pod" not in m["name"]
    ]
    assert container["volumeMounts"] == mounts
    assert pod["spec"]["volumes"] == worker["spec"]["volumes"][1:]
    assert pod["metadata"]["name"] == "digits-init-fetch-3"


def test_task_is_called_with_the_config_in_the_trainer_image() -> None:
    job = new_job(init=[CONVERT], config={"epochs": 3, "task": {"size": 8}}, **DATA)
    [container] = built(job)["spec"]["containers"]
    assert container["image"] == DEFAULTS.image
    assert container["command"] == ["python3", "-m", "ddp_trainer", "call", CONVERT["task"]]
    found = variables(built(job))
    assert found["DDP_CONFIG"] == '{"epochs":3,"task":{"size":8}}'
    assert found["DDP_INIT_TRY"] == "3"
    assert found["DDP_CHECKPOINT_DIR"].startswith("/checkpoints/digits-")
    assert "DDP_NODE_INDEX" not in found


def test_variables_of_the_step_override_those_of_the_job() -> None:
    env = [{"name": "A", "value": "job"}, {"name": "B", "value": "job"}]
    job = new_job(init=[{**FETCH, "env": [{"name": "A", "value": "step"}]}], env=env)
    assert (variables(built(job))["A"], variables(built(job))["B"]) == ("step", "job")


def test_pod_has_the_security_of_a_worker_without_rdma() -> None:
    job = new_job(init=[FETCH], network={"rdma": {"resource": "rdma/a"}})
    pod, worker = built(job)["spec"], build_pod(job, 0, 1, DEFAULTS)["spec"]
    assert pod["securityContext"] == worker["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_overlay_applies_without_its_containers_and_its_group() -> None:
    template = {
        "metadata": {
            "labels": {"team": "a", "kueue.x-k8s.io/pod-group-name": "g"},
            "annotations": {"note": "b", "ddp-trainer.dev/spec-hash": "other"},
        },
        "spec": {
            "containers": [{"name": "worker", "env": [{"name": "A"}]}, {"name": "sidecar"}],
            "initContainers": [{"name": "setup"}],
            "tolerations": [{"key": "pool", "operator": "Exists"}],
            "runtimeClassName": "gvisor",
        },
    }
    pod = built(new_job(init=[FETCH], podTemplate=template))
    assert len(pod["spec"]["containers"]) == 1
    assert "initContainers" not in pod["spec"]
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    tolerations = [t["key"] for t in pod["spec"]["tolerations"]]
    assert tolerations[0] == "pool"
    assert len(tolerations) == 3
    assert pod["metadata"]["labels"]["team"] == "a"
    assert "kueue.x-k8s.io/pod-group-name" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["ddp-trainer.dev/spec-hash"] != "other"
