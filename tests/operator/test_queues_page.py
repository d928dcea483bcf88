"""Tests that the page about gangs has a working manifest for each gang scheduler."""

import re
from pathlib import Path

import pytest
import yaml

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.builders.gangs.schedulers import build_group, new_gang
from ddp_operator.builders.pod import build_pod
from tests.operator.reconcile.test_gangs import OFFERED, VERSIONS

PAGE = Path(__file__).parents[2] / "docs" / "use" / "queues.md"


def jobs() -> list[DDPJob]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [parse_job(yaml.safe_load(block)) for block in blocks]


def test_queues_page_has_a_manifest_for_each_gang_scheduler() -> None:
    assert [job.spec.gang and job.spec.gang.type for job in jobs()] == list(VERSIONS)


@pytest.mark.parametrize("index", range(len(VERSIONS)))
def test_manifest_of_the_queues_page_gets_a_group_object(index: int) -> None:
    job = jobs()[index]
    gang = new_gang(job, OFFERED.gangs)
    assert gang is not None
    group = build_group(job, gang, build_pod(job, 0, 1, OFFERED))
    assert group["metadata"]["name"] == "digits-1"
    assert "2" in str(group["spec"])
