"""The manifests of the page about data and volumes work as they stand."""

import re
from pathlib import Path

import yaml

from ddp_operator.api.claim import ClaimTemplate
from ddp_operator.api.job import parse_job
from ddp_operator.builders.claim import build_claim
from ddp_operator.builders.names import claim_name
from ddp_operator.cluster.base import Manifest
from ddp_wire import contract
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import new_job, summary
from tests.scenarios.pods import ended_status

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


async def test_steps_of_the_page_run_in_their_order_before_the_workers() -> None:
    job = yaml.safe_load(BLOCKS[2])
    bench = Bench(**job["spec"])
    ran: list[tuple[str, str, str]] = []
    for _ in job["spec"]["init"]:
        await bench.reconcile_until_idle()
        [pod] = [p for p in bench.cluster.living() if contract.LABEL_INIT_STEP in _labels(p)]
        [container] = pod["spec"]["containers"]
        ran.append((pod["metadata"]["name"], container["image"], " ".join(container["command"])))
        assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/data", "/secret"}
        assert summary(bench.status())[1] == "Pending"
        bench.cluster.change_pod(pod["metadata"]["name"], **ended_status(0, None))
    await bench.reconcile_until_idle()
    called = "python3 -m ddp_trainer call my_package.data:convert"
    assert ran == [
        ("digits-init-fetch-1", "rclone/rclone:1.70", "rclone copy remote:flowers /data/raw"),
        ("digits-init-convert-1", bench.defaults.image, called),
    ]
    workers = [p["metadata"]["name"] for p in bench.cluster.living()]
    assert workers == ["digits-0", "digits-1"]


def _labels(pod: Manifest) -> dict[str, str]:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return labels
