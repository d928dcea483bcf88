"""A seeded sample of the random kills; `make faults` plays thirty."""

import os

import pytest

from tests.fault_player import kills
from tests.harness.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_a_job_that_is_struck_at_random_completes_and_loses_nothing(
    cluster: Cluster, namespace: str
) -> None:
    seed = int(os.environ.get("DDP_SEED", "0"))
    found = kills.play(cluster, namespace, 4, seed, print)
    assert not found, f"SEED={seed} repeats it"
