"""A seeded sample of the random kills; `make faults` plays thirty."""

import os

import pytest

from tests.fault_player import kills
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.cluster


# Each recovery has its own limit. On a busy machine their sum exceeds the usual limit of a test.
@pytest.mark.timeout(900)
def test_job_under_random_kills_completes_and_loses_no_step(
    cluster: Cluster, namespace: str
) -> None:
    seed = int(os.environ.get("DDP_SEED", "0"))
    found = kills.run_kills(cluster, namespace, 4, seed, print)
    assert not found, f"{found}; DDP_SEED={seed} repeats this run"
