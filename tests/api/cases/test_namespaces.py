"""Tests of an operator that serves a list of namespaces, with rights in these alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.api.client import always
from tests.api.control_plane import ControlPlane
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.harness.install import EXAMPLE_IMAGES, ROOT, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

RELEASE = "listed"
GRANTS = {"Role", "RoleBinding"}


@pytest.fixture
def listed_operator(
    control_plane: ControlPlane, job: Job, other_job: Job, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """Yield an operator with the rights of a release for two namespaces, not started yet."""
    cluster = control_plane.cluster
    namespaces = f"{job.namespace},{other_job.namespace}"
    chart = cluster.helm(
        "template", RELEASE, str(ROOT / "charts"), "-n", SYSTEM_NAMESPACE,
        "--no-hooks", *EXAMPLE_IMAGES,
        "--set", f"operator.watchNamespaces={{{namespaces}}},rbac.userRoles=false",
    ).stdout  # fmt: skip
    documents = [d for d in yaml.safe_load_all(chart) if d]
    assert not [d for d in documents if d["kind"].startswith("ClusterRole")]
    grants = yaml.safe_dump_all(d for d in documents if d["kind"] in GRANTS)
    cluster.kubectl("apply", "-f", "-", input=grants)
    user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}"
    settings = {"namespaces": namespaces}
    operator = OperatorProcess(cluster.kubeconfig_for(user), tmp_path / "log", settings=settings)
    yield operator
    operator.kill()
    cluster.kubectl("delete", "-f", "-", input=grants)


async def test_operator_serves_its_namespaces_without_rights_in_others(
    listed_operator: OperatorProcess, job: Job, other_job: Job, third_job: Job
) -> None:
    listed_operator.start()
    await listed_operator.wait_until_ready()
    for one in (job, other_job, third_job):
        await one.create()
    for one in (job, other_job):
        await one.pods_of_attempt(1)
        await one.start_training()
        await one.wait_for("Running")

    async def is_ignored() -> bool:
        return await third_job.pods() == []

    await always(is_ignored, "the third job has no pods", 1.0)
    assert "forbidden" not in listed_operator.log
