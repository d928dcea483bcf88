"""Metrics of the operator process."""

import re

from prometheus_client import CollectorRegistry, generate_latest

from ddp_operator.api.recovery import RecoveryStatus
from ddp_operator.api.status import AttemptStatus, Cause, DDPJobStatus
from ddp_operator.cluster.base import Request
from ddp_operator.cluster.kube.documents import resource_of
from ddp_operator.runtime import metrics
from ddp_operator.runtime.metrics import OperatorMetrics
from ddp_wire.families import Kind
from tests.operator.support import NOW


def ended(number: int, cause: Cause | None) -> AttemptStatus:
    return AttemptStatus(number=number, end_time=NOW, cause=cause, reason="RankFailed")


def test_ended_attempt_is_counted_once() -> None:
    registry = CollectorRegistry()
    measured = OperatorMetrics(registry)
    before = DDPJobStatus(attempts=[ended(1, Cause.APPLICATION)])
    after = DDPJobStatus(attempts=[*before.attempts, ended(2, Cause.INFRASTRUCTURE)])
    measured.record_status(before, after)
    measured.record_status(after, after)
    name = metrics.ATTEMPTS.name
    assert registry.get_sample_value(name, {"cause": "Infrastructure"}) == 1
    assert registry.get_sample_value(name, {"cause": "Application"}) == 0


def test_recovery_time_is_recorded_when_the_recovery_ends() -> None:
    registry = CollectorRegistry()
    measured = OperatorMetrics(registry)
    begun = DDPJobStatus(last_recovery=RecoveryStatus(attempt=2, time=NOW, decided_milliseconds=9))
    assert begun.last_recovery is not None
    times = {"first_step_milliseconds": 1300}
    complete = DDPJobStatus(last_recovery=begun.last_recovery.model_copy(update=times))
    measured.record_status(DDPJobStatus(), begun)
    measured.record_status(begun, complete)
    measured.record_status(complete, complete)
    name = f"{metrics.RECOVERY_SECONDS.name}_sum"
    assert registry.get_sample_value(name, {"part": "firstStep"}) == 1.3
    assert registry.get_sample_value(name, {"part": "decided"}) == 0.009
    assert registry.get_sample_value(name, {"part": "forked"}) == 0


def test_requests_count_by_verb_resource_and_code() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry).record_request(Request("PUT", "ddpjobs/status", 409, 0.1))
    labels = {"verb": "PUT", "resource": "ddpjobs/status", "code": "409"}
    assert registry.get_sample_value(metrics.REQUESTS.name, labels) == 1


def test_metrics_page_has_declared_series_only() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry).record_request(Request("PUT", "ddpjobs/status", 409, 0.1))
    page = generate_latest(registry).decode()
    names = {re.split("[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
    declared = {
        family.name + suffix
        for family in metrics.FAMILIES
        for suffix in (("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",))
    }
    assert {name for name in names if not name.startswith("process_")} <= declared


def test_resource_label_of_a_request_path_contains_no_object_names() -> None:
    root = "/apis/ddp-trainer.dev/v1alpha1"
    assert resource_of(f"{root}/namespaces/team-a/ddpjobs/digits/status") == "ddpjobs/status"
    assert resource_of(f"{root}/ddpjobs") == "ddpjobs"
    assert resource_of("/api/v1/namespaces/team-a/pods/digits-0") == "pods"
    for version in ("v1alpha1", "v1alpha2", "v1beta1"):
        path = f"/apis/scheduling.k8s.io/{version}/namespaces/team-a/podgroups/digits-1"
        assert resource_of(path) == "podgroups"
    lease = "/apis/coordination.k8s.io/v1/namespaces/ddp-system/leases/a"
    assert resource_of(lease) == "leases"
