"""A job with data for every panel: a rank is slow in the second attempt, and NVML is a stub."""

import base64
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster.support import Job, long_job
from tests.harness.cluster import Cluster

FOLDER = Path(__file__).parent / "observed"
_NAME = "observed"
_MOUNT = "/observed"


def observed_job(cluster: Cluster, namespace: str, **config: Any) -> Job:
    """Create the job with changed settings of its run."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _NAME},
        "data": {"observed_task.py": (FOLDER / "observed_task.py").read_text(encoding="utf-8")},
        "binaryData": {"libnvidia-ml.so.1": base64.b64encode(_library()).decode()},
    }
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(config_map))
    manifest = long_job("digits", **config)
    manifest["spec"] |= {
        "task": "observed_task:build",
        "env": [{"name": path, "value": _MOUNT} for path in ("PYTHONPATH", "LD_LIBRARY_PATH")],
        "volumes": [{"name": _NAME, "configMap": {"name": _NAME}}],
        "volumeMounts": [{"name": _NAME, "mountPath": _MOUNT}],
    }
    return Job.apply(cluster, namespace, manifest)


def _library() -> bytes:
    """Return the compiled stub of NVML."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "library.so")
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-s", "-o", str(library)]
        subprocess.run([*command, str(FOLDER / "nvml.c")], check=True)
        return library.read_bytes()
