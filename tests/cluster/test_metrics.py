"""A real Prometheus finds and scrapes the operator and the workers by the product's own file."""

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ddp_operator.runtime import metrics
from tests.cluster.observed_job import observed_job
from tests.cluster.prometheus import Prometheus
from tests.cluster.scrape_config import RULES_FILE, Discovery
from tests.cluster.support import Job, script_job
from tests.fault_player.faults import delete_pod
from tests.harness.cluster import Cluster
from tests.harness.install import ROOT, SYSTEM_NAMESPACE, eventually, operator_pods
from tools.dashboards.queries import queries

pytestmark = pytest.mark.cluster

DASHBOARDS = ROOT / "charts" / "dashboards"
EPOCHS = 100_000
"""Number of epochs, more than the test needs."""
# The first build of Prometheus 3 takes minutes.
LONG = (pytest.mark.sweep, pytest.mark.timeout(1800))
DISCOVERIES = (
    pytest.param(Discovery.FILE, id="file"),
    pytest.param(Discovery.API, id="api", marks=LONG),
    pytest.param(Discovery.ANNOTATIONS, id="annotations", marks=LONG),
)


@pytest.fixture(params=DISCOVERIES)
def prometheus(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    with Prometheus(cluster, request.param) as running:
        yield running


def values(found: list[dict[str, Any]]) -> list[float]:
    return [float(one["value"][1]) for one in found]


NOT_OF_EVERY_JOB = ("ddpjob_last_resize_seconds", "ddp_train_mirror_")
"""Beginnings of metrics that only a job has whose size has changed, or that has a mirror."""


def empty_queries(prometheus: Prometheus, namespace: str) -> list[str]:
    """Return the queries of dashboards and recording rules that find nothing."""
    given = {
        "namespace": namespace,
        "ddpjob": "digits",
        "operator_namespace": SYSTEM_NAMESPACE,
        # An attempt is new for one interval, here that of a dashboard of some days.
        "__interval": "5m",
    }
    files = sorted(DASHBOARDS.glob("*.json"))
    asked = [
        f"{file.stem}: {query}"
        for file in files
        for query in queries(json.loads(file.read_text(encoding="utf-8")), given)
        if not any(metric in query for metric in NOT_OF_EVERY_JOB)
    ]
    document = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"] if "record" in rule]
    asked += [f"{rule['record']}: {rule['expr']}" for rule in rules]
    return [q for q in asked if not prometheus.query(q.split(": ", 1)[1])]


def check_labels(prometheus: Prometheus, job: Job) -> None:
    """Check that a series of a worker has the labels of its pod and no others."""
    pod = job.pods()[0]
    [series] = prometheus.query(
        f'ddp_train_loss{{namespace="{job.namespace}",ddpjob="{job.name}"}}'
    )
    expected = {
        "__name__": "ddp_train_loss",
        "namespace": job.namespace,
        "ddpjob": job.name,
        "pod": f"{job.name}-0",
        "node": pod["spec"]["nodeName"],
        "node_index": "0",
    }
    if prometheus.discovery is Discovery.ANNOTATIONS:  # That configuration adds all labels.
        del expected["node_index"]
        labels = pod["metadata"]["labels"]
        expected |= {re.sub("[^a-zA-Z0-9_]", "_", name): labels[name] for name in labels}
    found = {k: v for k, v in series["metric"].items() if k not in {"instance", "job"}}
    assert found == expected


def test_prometheus_scrapes_operator_and_workers(
    cluster: Cluster, namespace: str, prometheus: Prometheus
) -> None:
    job = observed_job(cluster, namespace, epochs=EPOCHS, clip_norm=1.0, log={"every_steps": 8})
    mine = f'namespace="{namespace}",ddpjob="digits"'

    def query(expression: str) -> list[float]:
        return values(prometheus.query(expression.replace("MINE", mine)))

    job.wait_for_checkpoint()
    eventually(lambda: len(query("ddp_train_step{MINE} > 0")) == 4, "steps of all ranks", 30)
    # A scrape after the first update and before the first report has steps and no loss.
    eventually(lambda: len(query("ddp_train_loss{MINE}")) == 1, "the loss of the run", 30)
    eventually(lambda: query("ddpjob_step{MINE} > 0") != [], "progress from the operator", 30)
    # The first checkpoint may come before the second pod has told that it trains.
    eventually(lambda: query("ddpjob_nodes_ready{MINE}") == [2], "both pods train", 30)
    assert query('ddpjob_status_condition{MINE,condition="Rendezvoused",status="true"}') == [1]
    assert query(f'ddp_operator_leader{{namespace="{SYSTEM_NAMESPACE}"}}') == [1]
    check_labels(prometheus, job)
    # A pod of a test before this one may have ended since the newest discovery of targets.
    eventually(
        lambda: all(target["health"] != "down" for target in prometheus.targets()),
        "no target is down",
        30,
    )
    delete_pod(job, "digits-1")
    eventually(
        lambda: query('ddpjob_restarts_total{MINE,cause="Infrastructure"}') == [1],
        "the restart in the metrics",
        60,
    )
    job.wait_for("Running", 60)
    job.wait_for_checkpoint()
    eventually(
        lambda: query('ddpjob_straggler_ratio{MINE,rank="3",pod="digits-1"} > 1') != [],
        "the slow rank in the metrics",
        60,
    )
    empty = empty_queries(prometheus, namespace)
    assert not empty, "\n".join(empty)
    failing = [rule for rule in prometheus.rules() if rule["health"] != "ok"]
    assert not failing
    job.kubectl("delete", "ddpjob", job.name)
    # Recorded series, which have a colon, end 5 minutes later.
    eventually(lambda: query('{MINE,__name__=~"ddp[^:]*"}') == [], "no series of the job", 60)


def operator_series(cluster: Cluster) -> set[str]:
    """Return name and labels of each series that the operators expose."""
    found = set()
    for pod in operator_pods(cluster):
        url = f"http://{pod['status']['podIP']}:8080/metrics"
        with urllib.request.urlopen(url, timeout=5) as response:
            lines = response.read().decode().splitlines()
        found |= {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    return found


def series_of(cluster: Cluster, namespace: str) -> set[str]:
    """Return the series about jobs of a namespace."""
    return {one for one in operator_series(cluster) if f'namespace="{namespace}"' in one}


def test_series_of_ten_jobs_end_with_the_jobs(cluster: Cluster, namespace: str) -> None:
    before = operator_series(cluster)
    manifests = [
        script_job(f"tiny-{number}", "pass", nodes=1, procsPerNode=1) for number in range(10)
    ]
    document = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(document))
    eventually(
        lambda: sum("ddpjob_info" in one for one in series_of(cluster, namespace)) == 10,
        "an attempt of each job in the metrics",
    )
    with_jobs = series_of(cluster, namespace)
    print(f"{len(before)} series without the jobs, and {len(with_jobs)} of ten jobs")
    assert 100 < len(with_jobs) < 400
    cluster.kubectl("-n", namespace, "delete", "ddpjobs", "--all", "--wait=false")
    eventually(lambda: not series_of(cluster, namespace), "no series of the jobs")
    # These have series per kind of request, however many jobs cause it.
    requests = (metrics.REQUESTS.name, metrics.REQUEST_SECONDS.name)
    changed = operator_series(cluster) ^ before
    assert not {one for one in changed if not one.startswith(requests)}
