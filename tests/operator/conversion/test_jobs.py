"""DDPJobs made from PyTorchJobs and TrainJobs."""

from typing import Any

import pytest
import yaml

from ddp_operator.api.job import parse_job
from ddp_operator.conversion.jobs import Conversion, ConversionError, convert

PYTORCH_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: net
  namespace: team-a
  labels: {project: vision, kueue.x-k8s.io/queue-name: research}
spec:
  nprocPerNode: "2"
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 5
    ttlSecondsAfterFinished: 600
    activeDeadlineSeconds: 7200
    suspend: true
    schedulingPolicy: {minAvailable: 3, priorityClass: high}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        metadata:
          annotations: {sidecar.istio.io/inject: "false"}
        spec:
          serviceAccountName: trainer
          hostNetwork: true
          nodeSelector: {pool: gpu}
          tolerations: [{key: gpu, operator: Exists}]
          imagePullSecrets: [{name: registry}]
          containers:
            - name: pytorch
              image: registry.example/net:1
              imagePullPolicy: IfNotPresent
              workingDir: /app
              command: [torchrun, train.py]
              args: [--epochs, "3"]
              env: [{name: LOGLEVEL, value: DEBUG}]
              ports: [{name: pytorchjob-port, containerPort: 23456}]
              resources:
                limits: {nvidia.com/gpu: 4, memory: 32Gi}
                requests: {cpu: "8", nvidia.com/gpu: 4}
              volumeMounts:
                - {name: data, mountPath: /data}
                - {name: shm, mountPath: /dev/shm}
                - {name: nfs, mountPath: /nfs}
          volumes:
            - {name: data, persistentVolumeClaim: {claimName: images}}
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
            - {name: nfs, nfs: {server: a, path: /b}}
    Worker:
      <<: *replica
      replicas: 3
"""
TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: patched}
spec:
  runtimeRef: {kind: ClusterTrainingRuntime, name: torch-distributed}
  suspend: false
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [torchrun, /app/train.py]
    env: [{name: MODE, value: fast}]
    resourcesPerNode:
      requests: {cpu: "2", memory: 4Gi}
  runtimePatches:
    - manager: example.io/team
      trainingRuntimeSpec:
        template:
          metadata: {labels: {team: ml}}
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        nodeSelector: {pool: training}
                        serviceAccountName: training
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 1, torch: {numProcPerNode: auto}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            spec:
              template:
                spec:
                  nodeSelector: {zone: a}
                  containers:
                    - {name: node, image: "pytorch/pytorch:2.7.1", env: [{name: A, value: b}]}
"""

IMAGE_ONLY = """
kind: PyTorchJob
metadata: {name: a}
spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{image: b}]}}}}}
"""


def converted(*texts: str, command: tuple[str, ...] = ()) -> Conversion:
    """Return the only conversion, whose DDPJob the API accepts."""
    [found] = convert([yaml.safe_load(text) for text in texts], command)
    metadata = {"namespace": "default", **found.job["metadata"]}
    parse_job({**found.job, "metadata": metadata})
    return found


def test_all_fields_of_a_pytorch_job() -> None:
    found = converted(PYTORCH_JOB)
    assert found.job["metadata"] == {
        "name": "net",
        "namespace": "team-a",
        "labels": {"project": "vision"},
    }
    assert found.job["spec"] == {
        "nodes": 4,
        "image": "registry.example/net:1",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "LOGLEVEL", "value": "DEBUG"}],
        "gpusPerNode": 4,
        "procsPerNode": 2,
        "resources": {"limits": {"memory": "32Gi"}, "requests": {"cpu": "8"}},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": ["registry"],
        "network": {"hostNetwork": True},
        "sharedMemory": "16Gi",
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "images"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "podTemplate": {
            "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
            "spec": {
                "serviceAccountName": "trainer",
                "volumes": [{"name": "nfs", "nfs": {"server": "a", "path": "/b"}}],
                "containers": [
                    {
                        "name": "worker",
                        "workingDir": "/app",
                        "volumeMounts": [{"name": "nfs", "mountPath": "/nfs"}],
                    }
                ],
            },
        },
        "command": ["python"],
        "args": ["train.py", "--epochs", "3"],
        "cleanPodPolicy": "None",
        "maxRestarts": 5,
        "activeDeadlineSeconds": 7200,
        "ttlSecondsAfterFinished": 600,
        "suspend": True,
        "priorityClassName": "high",
        "gang": {"type": "Kueue", "queue": "research"},
    }


def test_notes_name_what_the_user_should_look_at() -> None:
    notes = converted(PYTORCH_JOB).notes
    for text in ("hostNetwork", "podTemplate holds", "schedulingPolicy", "ports", "the image must"):
        assert any(text in note for note in notes), text


def changed(**spec: Any) -> str:
    job = yaml.safe_load(PYTORCH_JOB)
    job["spec"] |= spec
    return yaml.safe_dump(job)


def test_elastic_policy_becomes_limits_of_an_elastic_job() -> None:
    policy = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 3, "maxRestarts": 100}
    found = converted(changed(elasticPolicy=policy | {"metrics": []}, runPolicy={}))
    assert found.job["spec"]["elastic"] == {"minNodes": 1}
    assert found.job["spec"]["maxRestarts"] == 100
    assert any("HorizontalPodAutoscaler" in note for note in found.notes)


def test_fields_that_no_ddpjob_has_are_named() -> None:
    found = converted(changed(successPolicy="AllWorkers", runPolicy={"other": 1}))
    assert "spec: left out, as a DDPJob has no such field: successPolicy" in found.notes
    assert "spec.runPolicy: left out, as a DDPJob has no such field: other" in found.notes


def test_process_per_pod_stays_one_rank_and_a_note_says_so() -> None:
    job = yaml.safe_load(PYTORCH_JOB)
    del job["spec"]["nprocPerNode"]
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["command"] = ["python", "train.py"]
    found = converted(yaml.safe_dump(job))
    assert found.job["spec"]["procsPerNode"] == 1
    assert any("one process per pod" in note for note in found.notes)


def test_train_job_with_its_runtime() -> None:
    found = converted(TRAIN_JOB, RUNTIME)
    spec = found.job["spec"]
    assert spec["image"] == "pytorch/pytorch:2.7.1"
    assert spec["env"] == [{"name": "MODE", "value": "fast"}]
    assert (spec["nodes"], spec["procsPerNode"]) == (2, 2)
    assert (spec["command"], spec["args"]) == (["python"], ["/app/train.py"])
    assert spec["resources"] == {"requests": {"cpu": "2", "memory": "4Gi"}}
    assert spec["nodeSelector"] == {"zone": "a", "pool": "training"}
    assert spec["podTemplate"]["metadata"] == {"labels": {"team": "ml"}}
    assert spec["podTemplate"]["spec"] == {"serviceAccountName": "training"}
    assert spec["suspend"] is False


def test_train_job_without_its_runtime_has_a_note() -> None:
    found = converted(TRAIN_JOB)
    assert "image" not in found.job["spec"]
    assert any("torch-distributed is not in the file" in note for note in found.notes)


def test_given_command_replaces_that_of_the_container() -> None:
    found = converted(PYTORCH_JOB, command=("python", "other.py"))
    assert found.job["spec"]["args"] == ["other.py"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Pod", "must hold a PyTorchJob or TrainJob, found Pod"),
        ("", "must hold a PyTorchJob or TrainJob, found nothing"),
        (
            "kind: PyTorchJob\nmetadata: {name: a}\nspec: {}",
            "PyTorchJob a: spec.pytorchReplicaSpecs must have Master or Worker",
        ),
        (
            IMAGE_ONLY,
            "PyTorchJob a: the container has no command, and a DDPJob cannot run",
        ),
        (
            "kind: TrainJob\nmetadata: {name: a}\nspec: {trainer: {command: [sh, -c, 'a && b']}}",
            "TrainJob a: the command is a shell script",
        ),
        (
            "kind: TrainJob\nmetadata: {name: a}\nspec: {trainer: {numNodes: x, command: [b]}}",
            "TrainJob a: a field has a wrong type",
        ),
    ],
)
def test_job_that_cannot_be_converted_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConversionError, match="^" + sentence.replace("(", r"\(")):
        convert([yaml.safe_load(text)])
