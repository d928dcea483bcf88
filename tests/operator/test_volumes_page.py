"""The manifests of the page about data and volumes work as they stand."""

import re
from pathlib import Path

import yaml

from ddp_operator.api.claim import ClaimTemplate
from ddp_operator.api.job import parse_job
from ddp_operator.builders.claim import build_claim
from ddp_operator.builders.names import claim_name
from tests.operator.support import new_job

PAGE = Path(__file__).parents[2] / "docs" / "use" / "volumes.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_claim_of_the_page_states_the_defaults() -> None:
    job = parse_job(yaml.safe_load(BLOCKS[0]))
    assert job.spec.checkpoint is not None
    given = job.spec.checkpoint.claim_template
    assert given == ClaimTemplate.model_validate({"size": "100Gi", "storageClassName": "nfs"})
    claim = build_claim(job)
    assert claim is not None
    assert claim["metadata"]["name"] == "digits-checkpoints"


def test_later_job_of_the_page_uses_the_claim_of_the_earlier_one() -> None:
    earlier = parse_job(yaml.safe_load(BLOCKS[0]))
    later = new_job(**yaml.safe_load(BLOCKS[1]))
    assert claim_name(later) == claim_name(earlier)
    assert build_claim(later) is None
