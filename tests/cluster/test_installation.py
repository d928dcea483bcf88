"""The life of an installation: upgrade, uninstallation, reinstallation, and a second release.

The namespaces of the releases and of the jobs enforce Restricted Pod Security. `helm test` proves
each installation: its pod runs on a real node, with the rights that Helm creates for it.
"""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.support import ENDLESS_EPOCHS, Job, long_job, script_job
from tests.cluster.test_upgrade import helm_upgrade
from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

SECOND, SECOND_NAMESPACE = "ddp-second", "ddp-second-system"
RELIST = {"operator.resyncSeconds": "86400"}
"""Value with which the fixture of the cluster installs the release."""
SHORT_SCRIPT = "print('done')"


def assert_helm_test_passes(
    cluster: Cluster, jobs: str, release: str = RELEASE, namespace: str = SYSTEM_NAMESPACE
) -> None:
    """Assert that `helm test` passes, tries a job in the namespace `jobs`, and leaves no rights."""
    done = cluster.helm("test", release, "--namespace", namespace, "--logs", "--timeout", "120s")
    sentence = f"jobs can be created in the namespace {jobs}, and the operator is ready"
    assert f"\nddp-trainer: {sentence}\n" in done.stdout, done.stdout + done.stderr
    rights = f"serviceaccount/{release}-test", f"role/{release}-test", f"rolebinding/{release}-test"
    for place in {namespace, jobs}:
        left = cluster.kubectl("-n", place, "get", "--ignore-not-found", "-o", "name", *rights)
        assert left.stdout == ""


def undisturbed(job: Job) -> tuple[dict[str, str], int, set[int]]:
    """Return pods, attempt and container restarts, which no step of an administrator may change."""
    statuses = [status for pod in job.pods() for status in pod["status"]["containerStatuses"]]
    restarts = {status["restartCount"] for status in statuses}
    return job.uids(), job.status["attempt"], restarts


def trained_steps(job: Job) -> int:
    """Return the newest step that a rank has reported to its agent. This needs no operator."""
    return max((beat.step for _, beat in job.heartbeats()), default=0)


@pytest.mark.timeout(480)
def test_job_runs_through_upgrade_uninstallation_and_reinstallation(
    cluster: Cluster, namespace: str
) -> None:
    assert_helm_test_passes(cluster, SYSTEM_NAMESPACE)
    job = Job.apply(cluster, namespace, long_job(epochs=ENDLESS_EPOCHS))
    job.wait_for_checkpoint()
    before = undisturbed(job)
    helm_upgrade(cluster, "--set", "operator.logLevel=DEBUG")
    job.wait_for_checkpoint()
    assert undisturbed(job) == before
    cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait")
    try:
        step = trained_steps(job)
        eventually(lambda: trained_steps(job) > step, "training without an operator", 60)
        assert undisturbed(job) == before
        # The finished pod of `helm test` stays, until the next `helm test` replaces it.
        cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pod", f"{RELEASE}-test")
    finally:
        install.install_chart(cluster, RELIST)
    assert_helm_test_passes(cluster, SYSTEM_NAMESPACE)
    job.wait_for_checkpoint()
    assert undisturbed(job) == before
    job.kubectl("delete", "ddpjob", job.name)


@pytest.fixture
def second_release(cluster: Cluster, namespace: str) -> Iterator[str]:
    """Yield a namespace that a second release serves, while the first one serves `namespace`."""
    other = f"{namespace[:40]}-second"
    install.create_namespace(cluster, other)
    helm_upgrade(cluster, "--set", f"operator.watchNamespaces={{{namespace}}}")
    once = {"crds.enabled": "false", "rbac.userRoles": "false"}
    values = RELIST | once | {"operator.watchNamespaces": f"{{{other}}}"}
    try:
        install.install_chart(cluster, values, release=SECOND, namespace=SECOND_NAMESPACE)
        yield other
    finally:
        cluster.helm(
            "uninstall", SECOND, "--namespace", SECOND_NAMESPACE, "--wait", "--ignore-not-found"
        )
        helm_upgrade(cluster, "--set-json", "operator.watchNamespaces=[]")


def creators_of_pods(cluster: Cluster, namespace: str) -> set[str]:
    """Return the users that created pods in a namespace, by the audit log."""
    with cluster.audit_log.open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines if namespace in line]
    wanted = {"resource": "pods", "namespace": namespace, "subresource": None}
    return {
        entry["user"]["username"]
        for entry in entries
        if entry["verb"] == "create"
        and all(entry.get("objectRef", {}).get(key) == value for key, value in wanted.items())
    }


@pytest.mark.timeout(480)
def test_each_release_serves_its_own_namespaces(
    cluster: Cluster, namespace: str, second_release: str
) -> None:
    assert_helm_test_passes(cluster, namespace)
    assert_helm_test_passes(cluster, second_release, SECOND, SECOND_NAMESPACE)
    short = script_job("short", SHORT_SCRIPT)
    for served in (namespace, second_release):
        Job.apply(cluster, served, short).wait_for("Completed")
    assert creators_of_pods(cluster, namespace) == {install.OPERATOR_USER}
    second = f"system:serviceaccount:{SECOND_NAMESPACE}:{SECOND}"
    assert creators_of_pods(cluster, second_release) == {second}
