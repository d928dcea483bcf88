"""Tests of the values that the chart passes on to the operator's Deployment and other objects."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import find_one, rendered, template
from tests.harness.install import ROOT

pytestmark = pytest.mark.api

JSON = dict[str, Any]
SPREAD = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
POD: JSON = {
    "affinity": {"podAntiAffinity": {}},
    "automountServiceAccountToken": False,
    "dnsConfig": {"nameservers": ["10.0.0.10"]},
    "dnsPolicy": "None",
    "enableServiceLinks": True,
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["api.example"]}],
    "hostUsers": False,
    "priorityClassName": "important",
    "runtimeClassName": "gvisor",
    "topologySpreadConstraints": [SPREAD],
}
"""Values that are fields of the pod with the same name and content."""
OTHER: JSON = {
    "commonLabels": {"team": "ml"},
    "deploymentAnnotations": {"owner": "platform"},
    "extraContainers": [{"name": "proxy", "image": "proxy:1"}],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "fullnameOverride": "trainer-operator",
    "livenessProbe": {"timeoutSeconds": 9},
    "nodeSelector": {"pool": "system"},
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": 7},
    "readinessProbe": {"initialDelaySeconds": 3},
    "revisionHistoryLimit": 0,
    "securityContext": {"runAsNonRoot": True},
    "serviceAccount": {"create": False, "name": "shared"},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
}


def with_values(folder: Path, values: JSON, *flags: str) -> list[JSON]:
    """Render the chart with a file of values."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    return rendered("--values", str(file), *flags)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[JSON]:
    return with_values(tmp_path_factory.mktemp("values"), {**POD, **OTHER, "replicaCount": 2})


def test_pod_values_become_fields_of_the_operators_pod(documents: list[JSON]) -> None:
    pod = find_one(documents, "Deployment")["spec"]["template"]["spec"]
    assert {key: pod.get(key) for key in POD} == POD
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    assert pod["serviceAccountName"] == "shared"
    # OpenShift refuses a user id that it has not assigned.
    profile = {"type": "RuntimeDefault"}
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": profile,
        "fsGroup": 7,
    }


def test_container_values_are_added_to_those_of_the_chart(documents: list[JSON]) -> None:
    pod = find_one(documents, "Deployment")["spec"]["template"]["spec"]
    container, other = pod["containers"]
    assert other == OTHER["extraContainers"][0]
    assert OTHER["extraEnv"][0] in container["env"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["tmp", "ca"]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "ca"]
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/healthz", "port": "health"},
        "periodSeconds": 10,
        "timeoutSeconds": 9,
        "failureThreshold": 3,
    }
    assert container["readinessProbe"]["initialDelaySeconds"] == 3
    assert container["readinessProbe"]["periodSeconds"] == 2
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_deployment_and_label_values_reach_the_objects_of_the_release(
    documents: list[JSON],
) -> None:
    deployment = find_one(documents, "Deployment")
    assert deployment["metadata"]["annotations"] == OTHER["deploymentAnnotations"]
    assert deployment["spec"]["strategy"] == OTHER["strategy"]
    assert deployment["spec"]["revisionHistoryLimit"] == 0
    assert all(d["metadata"]["labels"]["team"] == "ml" for d in documents)
    shared = {"CustomResourceDefinition"}
    names = {
        d["metadata"]["name"]
        for d in documents
        if d["kind"] not in shared and not d["metadata"]["name"].startswith("ddpjob-")
    }
    assert all(name.startswith("trainer-operator") for name in names), names
    assert not [d for d in documents if d["kind"] == "ServiceAccount"]
    bindings = [d for d in documents if d["kind"] == "ClusterRoleBinding"]
    subjects = [subject["name"] for binding in bindings for subject in binding["subjects"]]
    assert subjects == ["shared", "shared"], "one for jobs and one for nodes"
    policy = find_one(documents, "ValidatingAdmissionPolicy", "trainer-operator-operator")
    [condition] = policy["spec"]["matchConditions"]
    user = "request.userInfo.username == 'system:serviceaccount:ddp-system:shared' && !("
    assert condition["expression"].startswith(user)


def test_webhook_reads_its_keys_from_a_mounted_secret(tmp_path: Path) -> None:
    values = {"url": "https://hooks.example.com/a?b=c", "secretName": "hook"}
    documents = with_values(tmp_path, {"notifications": values})
    pod = find_one(documents, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {e["name"]: e.get("value") for e in container["env"]}
    assert given["DDP_OPERATOR_WEBHOOK_URL"] == values["url"]
    mount = next(m for m in container["volumeMounts"] if m["name"] == "webhook")
    assert given["DDP_OPERATOR_WEBHOOK_KEY_FILE"] == f"{mount['mountPath']}/keys"
    volume = next(v for v in pod["volumes"] if v["name"] == "webhook")
    items = [{"key": "keys", "path": "keys"}]
    assert volume["secret"] == {"secretName": "hook", "items": items}
    assert len(documents) == len(rendered()), "a webhook needs no rights"


def test_extra_objects_are_templates_of_the_release(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-text'\n"
    mapping = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "{{ .Release.Name }}-map"},
    }
    documents = with_values(tmp_path, {"extraObjects": [text, mapping]})
    assert find_one(documents, "ConfigMap", "ddp-trainer-text")
    assert find_one(documents, "Secret", "ddp-trainer-map")
    assert len(documents) == len(rendered()) + 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            "serviceAccount.create=false",
            "serviceAccount.name must be set when serviceAccount.create is false",
        ),
        (
            "leaderElection.enabled=false,strategy.type=RollingUpdate",
            "strategy must not be set when leaderElection.enabled is false",
        ),
        ("fullnameOverride=Trainer", "fullnameOverride"),
        ("gangs.default=Volcano", "gangs.default must be None or one of gangs.types"),
        ("gangs.types={Slurm}", "gangs"),
        ("hostAliases[0].ip=10.0.0.1", "hostnames"),
        (
            "notifications.url=https://hooks.example.com",
            "notifications.secretName must be set when notifications.url is",
        ),
        ("notifications.url=hooks.example.com", "notifications"),
    ],
)
def test_values_that_contradict_each_other_are_rejected(flags: str, sentence: str) -> None:
    result = template("--set", flags)
    assert result.returncode != 0
    assert sentence in result.stderr


def test_artifact_hub_lists_the_crd_and_an_example() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "Chart.yaml").read_text("utf-8"))
    [listed] = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    crd = yaml.safe_load((ROOT / "manifests" / "crd" / "ddpjobs.yaml").read_text("utf-8"))
    assert listed["name"] == crd["metadata"]["name"]
    assert listed["kind"] == crd["spec"]["names"]["kind"]
    assert [listed["version"]] == [version["name"] for version in crd["spec"]["versions"]]
    [example] = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    sample = yaml.safe_load((ROOT / "manifests" / "samples" / "digits.yaml").read_text("utf-8"))
    assert example == sample
