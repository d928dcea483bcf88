"""Tests that the page about gangs has a working manifest for each gang scheduler."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.builders.gangs.schedulers import build_group, new_gang
from ddp_operator.builders.gangs.versions import KUEUE, Gangs
from ddp_operator.builders.pod import build_pod
from ddp_operator.reconcile.children import fresh_pods
from tests.operator.reconcile.test_gangs import OFFERED, VERSIONS
from tests.operator.support import DEFAULTS, with_status

PAGE = Path(__file__).parents[2] / "docs" / "use" / "queues.md"


def jobs() -> list[DDPJob]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [parse_job(yaml.safe_load(block)) for block in blocks]


def test_queues_page_has_a_manifest_for_each_gang_scheduler() -> None:
    types = [job.spec.gang and job.spec.gang.type for job in jobs()]
    assert types == [*VERSIONS, GangType.KUEUE]


@pytest.mark.parametrize("index", range(len(VERSIONS)))
def test_manifest_of_the_queues_page_gets_a_group_object(index: int) -> None:
    job = jobs()[index]
    gang = new_gang(job, OFFERED.gangs)
    assert gang is not None
    group = build_group(job, gang, build_pod(job, 0, 1, OFFERED))
    assert group["metadata"]["name"] == "digits-1"
    assert "2" in str(group["spec"])


def test_manifest_for_kueue_gets_the_marks_of_a_group() -> None:
    job = jobs()[-1]
    gangs = Gangs(types=(GangType.KUEUE,), served=((GangType.KUEUE, KUEUE),))
    defaults = replace(DEFAULTS, gangs=gangs)
    started = with_status(job, pods=fresh_pods(job, defaults))
    metadata = build_pod(started, 0, 1, defaults)["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"].startswith("digits-1")
    assert metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
