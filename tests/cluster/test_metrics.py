"""A real Prometheus finds and scrapes the operator and the workers by the product's own file."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ddp_operator.runtime import job_metrics
from tests.cluster.support import Job, long_job
from tests.fault_player.faults import delete_pod
from tests.harness.cluster import Cluster
from tests.tools.dashboards.queries import queries
from tests.tools.install import ROOT, SYSTEM_NAMESPACE, eventually
from tests.tools.prometheus import Prometheus

pytestmark = pytest.mark.cluster

RULES = ROOT / "manifests" / "prometheus" / "rules.yaml"
DASHBOARDS = ROOT / "charts" / "dashboards"
EPOCHS = 100_000
"""More than the test takes."""


@pytest.fixture
def prometheus(cluster: Cluster) -> Iterator[Prometheus]:
    with Prometheus(cluster) as running:
        yield running


def values(found: list[dict[str, Any]]) -> list[float]:
    return [float(one["value"][1]) for one in found]


NOT_IN_THIS_RUN = ("gpu", job_metrics.STRAGGLER.name)
"""Parts of queries that need a GPU, or a rank that is slower than the others."""


def empty_queries(prometheus: Prometheus, namespace: str) -> list[str]:
    """Return the queries of dashboards and recording rules that wrongly find nothing."""
    given = {"namespace": namespace, "ddpjob": "digits", "operator_namespace": SYSTEM_NAMESPACE}
    files = sorted(DASHBOARDS.glob("*.json"))
    asked = [
        f"{file.stem}: {query}"
        for file in files
        for query in queries(json.loads(file.read_text(encoding="utf-8")), given)
    ]
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"] if "record" in rule]
    asked += [f"{rule['record']}: {rule['expr']}" for rule in rules]
    wanted = [q for q in asked if not any(part in q for part in NOT_IN_THIS_RUN)]
    return [q for q in wanted if not prometheus.query(q.split(": ", 1)[1])]


def test_prometheus_scrapes_operator_and_workers(
    cluster: Cluster, namespace: str, prometheus: Prometheus
) -> None:
    job = Job.apply(cluster, namespace, long_job(epochs=EPOCHS, clip_norm=1.0))
    mine = f'namespace="{namespace}",ddpjob="digits"'

    def query(expression: str) -> list[float]:
        return values(prometheus.query(expression.replace("MINE", mine)))

    job.wait_for_checkpoint()
    eventually(lambda: len(query("ddp_train_step{MINE} > 0")) == 4, "steps of all ranks", 30)
    eventually(lambda: query("ddpjob_step{MINE} > 0") != [], "progress from the operator", 30)
    assert query("ddpjob_nodes_ready{MINE}") == [2]
    assert query('ddpjob_status_condition{MINE,condition="Rendezvoused",status="true"}') == [1]
    assert query(f'ddp_operator_leader{{namespace="{SYSTEM_NAMESPACE}"}}') == [1]
    [series] = prometheus.query(f"ddp_train_loss{{{mine}}}")
    labels = {k: v for k, v in series["metric"].items() if k not in {"instance", "job"}}
    node = job.pods()[0]["spec"]["nodeName"]
    assert labels == {
        "__name__": "ddp_train_loss",
        "namespace": namespace,
        "ddpjob": "digits",
        "pod": "digits-0",
        "node": node,
        "node_index": "0",
    }
    down = [t["lastError"] for t in prometheus.targets() if t["health"] == "down"]
    assert not down
    delete_pod(job, "digits-1")
    eventually(
        lambda: query('ddpjob_restarts_total{MINE,cause="Infrastructure"}') == [1],
        "the restart in the metrics",
        60,
    )
    job.wait_for("Running", 60)
    job.wait_for_checkpoint()
    empty = empty_queries(prometheus, namespace)
    assert not empty, "\n".join(empty)
    job.kubectl("delete", "ddpjob", job.name)
    eventually(lambda: query('{MINE,__name__=~"ddp.*"}') == [], "no series of the job", 60)
