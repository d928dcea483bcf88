"""Write install.yaml: the chart with its default values, for clusters without Helm.

    python -m tools.install_manifest [--registry registry.example/ddp-trainer] [--output dist]

`make manifest` and `make release` call this. It needs helm, which takes a minute to build once.
"""

import argparse
import re
import sys
from pathlib import Path

from tests.harness import binaries
from tests.harness.errors import HarnessError
from tests.harness.install import RELEASE, ROOT, SYSTEM_NAMESPACE, VERSION
from tests.harness.run import command

NAME = "install.yaml"
REGISTRY = "registry.example/ddp-trainer"
"""Default registry of the images in the file."""
_HEAD = f"""\
# ddp-trainer {VERSION}, for `kubectl apply -f`. `kubectl delete -f` also deletes all DDPJobs.
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
"""Lines that would mark the objects as managed by Helm."""


def build_install_manifest(registry: str = REGISTRY) -> str:
    """Return the manifest with the namespace and all objects of the chart except tests.

    Args:
        registry: Registry of the images `operator` and `trainer`.

    Raises:
        HarnessError: Helm cannot be built, or it refused the chart.
    """
    settings = {
        "crds.keep": "false",  # an annotation for Helm alone
        "image.repository": f"{registry}/operator",
        "trainerImage.repository": f"{registry}/trainer",
    }
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    chart = [RELEASE, str(ROOT / "charts"), "--namespace", SYSTEM_NAMESPACE, "--no-hooks"]
    line = [binaries.helm(), "template", *chart, *flags]
    return _HEAD + _OF_HELM.sub("", command(line, "Rendering the chart"))


def main() -> None:
    """Write the file into a folder, and print its path."""
    parser = argparse.ArgumentParser(description="Write install.yaml, for kubectl apply.")
    parser.add_argument("--registry", default=REGISTRY, help="where the images are")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the file")
    options = parser.parse_args()
    try:
        text = build_install_manifest(options.registry)
    except HarnessError as error:
        sys.exit(f"{NAME}: {error}")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / NAME).write_text(text, encoding="utf-8")
    print(options.output / NAME)


if __name__ == "__main__":
    main()
