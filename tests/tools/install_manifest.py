"""Write manifests/install.yaml, the chart with its default values for clusters without Helm.

It needs helm, which takes minutes to build once. So `generate` does not write this file, and
tests/chart and not `make check` compares it with the chart.
"""

import re
import sys

from tests.harness import binaries
from tests.harness.errors import HarnessError
from tests.harness.run import command
from tests.tools.install import EXAMPLE_IMAGES, RELEASE, ROOT, SYSTEM_NAMESPACE

INSTALL = ROOT / "manifests" / "install.yaml"
_HEAD = f"""\
# The chart with its default values, for `kubectl apply`. `make generate` writes this file.
# docs/operations.md says how to set the images. `kubectl delete -f` also deletes all DDPJobs.
apiVersion: v1
kind: Namespace
metadata:
  name: {SYSTEM_NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_OF_HELM = re.compile(
    r"^ +(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm)\n|^# Source: .*\n", re.MULTILINE
)
"""Lines that would say that Helm manages these objects."""


def build_install_manifest() -> str:
    """Return the manifest: the namespace, and all objects of the chart except its tests.

    Raises:
        HarnessError: Helm cannot be built, or it refused the chart.
    """
    # The annotation of crds.keep is for Helm alone.
    options = ["--namespace", SYSTEM_NAMESPACE, "--no-hooks", "--set", "crds.keep=false"]
    options += EXAMPLE_IMAGES
    chart = [RELEASE, str(ROOT / "charts")]
    rendered = command([binaries.helm(), "template", *chart, *options], "Rendering the chart")
    return _HEAD + _OF_HELM.sub("", rendered)


def main() -> None:
    """Write the file."""
    try:
        INSTALL.write_text(build_install_manifest(), encoding="utf-8")
    except HarnessError as error:
        sys.exit(f"{INSTALL.relative_to(ROOT)}: {error}")


if __name__ == "__main__":
    main()
