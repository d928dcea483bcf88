"""Describe the state of the cluster for the report of a failed test."""

import pytest

from tests.harness import processes
from tests.harness.cluster import Cluster
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE
from tests.harness.run import tail

_LINES = 40
_SORTED = "--sort-by=.metadata.creationTimestamp"
_JOBS = (
    "jsonpath={range .items[*]}{.metadata.name}: generation {.metadata.generation},"
    " spec {.spec}, status {.status}{'\\n'}{end}"
)


def add_to_failure(report: pytest.TestReport, item: pytest.Item) -> pytest.TestReport:
    """Add the state of the cluster to the report of a failed test. Return the report."""
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    cluster = arguments.get("cluster", getattr(arguments.get("control_plane"), "cluster", None))
    if report.failed and isinstance(cluster, Cluster):
        namespace = arguments.get("namespace")
        text = describe(cluster, namespace if isinstance(namespace, str) else None)
        report.sections.append(("Cluster", text))
    return report


def describe(cluster: Cluster, namespace: str | None) -> str:
    """Return the end of the log of each ended process, and the objects of a namespace."""
    found = [
        f"{name} ended:\n{processes.log_tail(name)}"
        for name in processes.names()
        if not processes.alive(name)
    ]
    if namespace is not None:
        found += [
            _output(cluster, "-n", namespace, "get", "ddpjobs", "-o", _JOBS),
            _output(cluster, "-n", namespace, "get", "pods", "-o", "wide"),
            _output(cluster, "-n", namespace, "get", "events", _SORTED),
        ]
    if cluster.nodes:
        found.append(_operator_log(cluster, namespace))
    return "\n".join(found)


def _operator_log(cluster: Cluster, namespace: str | None) -> str:
    everything = _output(
        cluster, "-n", SYSTEM_NAMESPACE, "logs", f"deployment/{RELEASE}", "--tail=-1", lines=None
    )
    lines = everything.splitlines()
    about = [line for line in lines if namespace is None or namespace in line]
    return "\n".join(["operator's log:", *about[-_LINES:]])


def _output(cluster: Cluster, *args: str, lines: int | None = _LINES) -> str:
    done = cluster.kubectl(*args, check=False)
    text = f"{done.stdout}{done.stderr}"
    return text if lines is None else tail(text, lines)
