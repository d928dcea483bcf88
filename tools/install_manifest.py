"""Write manifests/install.yaml, the chart with its default values for clusters without Helm.

It needs helm, which takes minutes to build once. So the file has a fingerprint of the chart and of
its own text, by which `make check` finds a change without helm. tests/chart compares every line.
"""

import hashlib
import re
from pathlib import Path

from tests.harness import binaries
from tests.harness.install import EXAMPLE_IMAGES, RELEASE, ROOT, SYSTEM_NAMESPACE
from tests.harness.run import command

INSTALL = ROOT / "manifests" / "install.yaml"
CHART = ROOT / "charts"
_FINGERPRINT = "# Fingerprint of the chart and of this file: "
_HEAD = f"""\
# The chart with its default values, for `kubectl apply`. `make generate` writes this file.
# docs/operate/install.md says how to set the images. `kubectl delete -f` also deletes all DDPJobs.
{_FINGERPRINT}
apiVersion: v1
kind: Namespace
metadata:
  name: {SYSTEM_NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
# The annotation of crds.keep is for Helm alone.
_OPTIONS = [
    "--namespace", SYSTEM_NAMESPACE, "--no-hooks", "--set", "crds.keep=false", *EXAMPLE_IMAGES,
]  # fmt: skip
_OF_HELM = re.compile(
    r"^ +(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm)\n|^# Source: .*\n", re.MULTILINE
)
"""Lines that would say that Helm manages these objects."""


def build_install_manifest() -> str:
    """Return the manifest: the namespace, and all objects of the chart except its tests.

    Raises:
        HarnessError: Helm cannot be built, or it refused the chart.
    """
    line = [binaries.helm(), "template", RELEASE, str(CHART), *_OPTIONS]
    text = _HEAD + _OF_HELM.sub("", command(line, "Rendering the chart"))
    return text.replace(_FINGERPRINT, _FINGERPRINT + _fingerprint(CHART, text), 1)


def is_current(text: str, chart: Path = CHART) -> bool:
    """Return whether a manifest was built from this chart, and nobody has changed it since."""
    head, mark, rest = text.partition(_FINGERPRINT)
    found, end, body = rest.partition("\n")
    return bool(mark) and found == _fingerprint(chart, head + mark + end + body)


def _fingerprint(chart: Path, text: str) -> str:
    """Return a hash of a chart and of the manifest without its fingerprint."""
    found = hashlib.sha256(repr(_OPTIONS).encode())
    for file in sorted(chart.rglob("*")):
        if file.is_file() and file.name != "README.md" and file.name[0] != ".":
            found.update(f"{file.relative_to(chart)}\n".encode() + file.read_bytes())
    found.update(text.encode())
    return found.hexdigest()[:16]
