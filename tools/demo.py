"""Start a cluster for manual use: two nodes, the installed chart, and a namespace with a claim."""

import argparse
import sys
import time
from pathlib import Path

from tests.harness import install
from tests.harness.cluster import Cluster
from tests.harness.errors import HarnessError

NAMESPACE = "demo"


def main() -> None:
    """Start the cluster and print instructions for its use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path("wheels"))
    wheels: Path = parser.parse_args().wheels
    started = time.monotonic()
    try:
        built = install.build_images(wheels)
        cluster = Cluster.up(2)
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.create_namespace(cluster, NAMESPACE)
    except HarnessError as error:
        sys.exit(f"make cluster: {error}")
    cluster.kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}")
    print(f"ready after {time.monotonic() - started:.0f} s. Stop it: make cluster-down. Try:")
    print("  kubectl apply -f manifests/samples/digits.yaml")
    print("  kubectl get ddpjobs --watch")
    print(f"export PATH={Path(sys.executable).parent}:$PATH")
    print(f"export KUBECONFIG={cluster.kubeconfig}")


if __name__ == "__main__":
    main()
