"""Which children count as the job's, and as intact."""

from typing import Any

import pytest

from ddp_operator.builders.service import build_service
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.runtime.ownership import selects
from tests.operator.support import active_job

JOB = active_job()


@pytest.mark.parametrize(
    ("edit", "intact"),
    [
        ({}, True),
        ({"ipFamilies": ["IPv4"]}, True),
        ({"selector": None}, False),
        ({"selector": {"app": "other"}}, False),
        ({"publishNotReadyAddresses": False}, False),
        ({"publishNotReadyAddresses": None}, False),
    ],
)
def test_edited_service_is_found(edit: dict[str, Any], intact: bool) -> None:
    """Addresses that appear only when a pod is ready appear too late for the rendezvous."""
    service = build_service(JOB)
    spec = {key: value for key, value in (service["spec"] | edit).items() if value is not None}
    metadata = service["metadata"] | {"uid": "s", "resourceVersion": "2"}
    found = keep_used_fields("Service", {**service, "metadata": metadata, "spec": spec})
    assert selects(found, JOB) is intact
