"""Run jobs with faults on a real two-node cluster, and render the dashboards from their metrics.

    python -m tools.rendering.record --wheels DIR --output DIR

Needs Linux and root, as `tests/cluster` does. The values of the GPUs are those of a stub.
"""

import argparse
import time
from pathlib import Path

from tests.cluster.observed_job import observed_job
from tests.cluster.prometheus import Prometheus
from tests.cluster.support import Job, script_job
from tests.fault_player.faults import delete_pod, kill_rank
from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.install import SYSTEM_NAMESPACE, eventually
from tools.rendering.__main__ import render

NAMESPACE = "team-a"
_QUIET_SECONDS = 60
"""Time of training before and after each fault."""
_SCRAPE_SECONDS = 5


def main() -> None:
    """Run the jobs on a new cluster, and print the paths of the pages."""
    parser = argparse.ArgumentParser(description="Renders the dashboards of a run with faults.")
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    built = install.build_images(options.wheels)
    cluster = Cluster.up(2)
    try:
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.create_namespace(cluster, NAMESPACE)
        with Prometheus(cluster) as prometheus:
            start = time.time()
            run_jobs(cluster)
            pages = render(
                prometheus.url,
                options.output,
                start=start,
                end=time.time(),
                scrape_seconds=_SCRAPE_SECONDS,
                variables={
                    "namespace": NAMESPACE,
                    "ddpjob": "digits",
                    "operator_namespace": SYSTEM_NAMESPACE,
                },
            )
    finally:
        cluster.down()
    print("\n".join(map(str, pages)))


def run_jobs(cluster: Cluster) -> None:
    """Run a job of which a pod and later a rank fail, among jobs in other states."""
    job = observed_job(cluster, NAMESPACE, epochs=1000, clip_norm=1.0, log={"every_steps": 8})
    short = Job.apply(cluster, NAMESPACE, script_job("smoke", "pass", nodes=1, procsPerNode=1))
    failing = script_job("typo", "import tourch", nodes=1, procsPerNode=1, maxRestarts=1)
    failed = Job.apply(cluster, NAMESPACE, failing)
    Job.apply(cluster, NAMESPACE, script_job("later", "pass", suspend=True))
    job.wait_for_checkpoint()
    short.wait_for("Completed")
    failed.wait_for("Failed")
    time.sleep(_QUIET_SECONDS)
    delete_pod(job, "digits-1")
    wait_for_attempt(job, 2)
    time.sleep(2 * _QUIET_SECONDS)
    kill_rank(job, 0)
    wait_for_attempt(job, 3)
    time.sleep(_QUIET_SECONDS)


def wait_for_attempt(job: Job, number: int) -> None:
    """Wait until an attempt has a new checkpoint."""
    eventually(lambda: job.status.get("attempt") == number, f"attempt {number}", 120)
    job.wait_for("Running", 120)
    job.wait_for_checkpoint()


if __name__ == "__main__":
    main()
