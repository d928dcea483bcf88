"""Tests of the objects of `helm test`. tests/api runs its command with these rights."""

from typing import Any

import pytest
import yaml

from tests.chart.test_chart import find_one, rendered, template

pytestmark = pytest.mark.api

JSON = dict[str, Any]
SHOW = ("--show-only", "templates/tests/installation.yaml", "--namespace", "ddp-system")
JOBS = {"apiGroups": ["ddp-trainer.dev"], "resources": ["ddpjobs"], "verbs": ["create"]}
DEPLOYMENT = {
    "apiGroups": ["apps"],
    "resources": ["deployments"],
    "resourceNames": ["ddp-trainer"],
    "verbs": ["get"],
}


def hooks(*flags: str) -> list[JSON]:
    result = template(*SHOW, *flags)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def rules(documents: list[JSON]) -> dict[str, list[JSON]]:
    """Return the rules of the test's roles by namespace. Each role is bound to its account."""
    bindings = [d for d in documents if d["kind"] == "RoleBinding"]
    for binding in bindings:
        assert binding["roleRef"]["name"] == "ddp-trainer-test"
        subject = {"kind": "ServiceAccount", "name": "ddp-trainer-test", "namespace": "ddp-system"}
        assert binding["subjects"] == [subject]
    roles = {d["metadata"]["namespace"]: d["rules"] for d in documents if d["kind"] == "Role"}
    assert sorted(roles) == sorted(b["metadata"]["namespace"] for b in bindings)
    return roles


def test_objects_of_helm_test_exist_only_during_the_test() -> None:
    documents = hooks()
    policies = {}
    for document in documents:
        annotations = document["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        policies[document["kind"]] = annotations["helm.sh/hook-delete-policy"]
    deleted = "before-hook-creation,hook-succeeded"
    rights = dict.fromkeys(("ServiceAccount", "Role", "RoleBinding"), deleted)
    # The pod keeps the sentence for `helm test --logs`.
    assert policies == {**rights, "Pod": "before-hook-creation"}
    installed = {(d["kind"], d["metadata"]["name"]) for d in rendered()}
    assert not installed & {(d["kind"], d["metadata"]["name"]) for d in documents}


def test_helm_test_may_only_create_jobs_and_read_the_operators_deployment() -> None:
    assert rules(hooks()) == {"ddp-system": [JOBS, DEPLOYMENT]}
    assert rules(hooks("--set", "rbac.create=false")) == {}


def test_helm_test_tries_a_job_in_a_namespace_that_the_operator_watches() -> None:
    documents = hooks("--set", "operator.watchNamespaces={team-a,team-b}")
    assert rules(documents) == {"team-a": [JOBS], "ddp-system": [DEPLOYMENT]}
    [container] = find_one(documents, "Pod")["spec"]["containers"]
    assert "--job-namespace=team-a" in container["args"]


def test_pod_of_helm_test_has_the_security_settings_of_the_operators_pod() -> None:
    digest = f"sha256:{'a' * 64}"
    flags = ("--set", f"image.digest={digest},imagePullSecrets={{a,b}},nodeSelector.pool=system")
    pod = find_one(hooks(*flags), "Pod")
    operator = find_one(rendered(*flags), "Deployment")["spec"]["template"]["spec"]
    same = ("imagePullSecrets", "securityContext", "nodeSelector", "tolerations")
    assert {k: pod["spec"][k] for k in same} == {k: operator[k] for k in same}
    [container], [other] = pod["spec"]["containers"], operator["containers"]
    for key in ("image", "imagePullPolicy", "securityContext"):
        assert container[key] == other[key]
    assert container["image"].endswith(digest)
    assert pod["spec"]["restartPolicy"] == "Never"


def test_pod_of_helm_test_does_not_match_the_operators_selector() -> None:
    """The NetworkPolicies of jobs let the operator's pods connect to the agents."""
    selector = find_one(rendered(), "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= find_one(hooks(), "Pod")["metadata"]["labels"].items()
