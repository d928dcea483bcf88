"""Check for `helm test` that the API server accepts jobs and that the operator is ready."""

import argparse
import asyncio
import sys
import time

from ddp_operator.cluster.base import Key
from ddp_operator.cluster.kube.installation import InstallationClient, InstallationError

_INTERVAL_SECONDS = 1.0


async def check(deployment: Key, job_namespace: str, seconds: float) -> None:
    """Repeat the check until the installation has no defect.

    Args:
        deployment: Namespace and name of the operator's Deployment.
        job_namespace: Namespace whose jobs the operator manages.
        seconds: Seconds after which a remaining defect is an error.

    Raises:
        InstallationError: The installation still has a defect after this time.
    """
    deadline = time.monotonic() + seconds
    client = await InstallationClient.connect()
    try:
        while True:
            try:
                await client.check_jobs(job_namespace)
                await client.check_operator(deployment)
            except InstallationError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_INTERVAL_SECONDS)
            else:
                return
    finally:
        await client.close()


def main() -> None:
    """Run the command. Exit with 1 and one sentence if the installation has a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True, help="namespace of the operator")
    parser.add_argument("--deployment", required=True, help="Deployment of the operator")
    parser.add_argument("--job-namespace", required=True, help="namespace in which to try a job")
    parser.add_argument("--seconds", type=float, default=60, help="seconds to wait (default: 60)")
    given = parser.parse_args()
    try:
        asyncio.run(check((given.namespace, given.deployment), given.job_namespace, given.seconds))
    except InstallationError as error:
        sys.exit(f"ddp-trainer: {error}")
    print(
        f"ddp-trainer: jobs can be created in the namespace {given.job_namespace}, "
        f"and the operator is ready"
    )


if __name__ == "__main__":
    main()
