"""Lines of a watch of pods, as the API server writes them."""

import json
from typing import Any

from tests.operator.support import active_job, pod_manifest

JOB = active_job()


def event(kind: str, index: int = 0, *, version: int = 1, **metadata: Any) -> bytes:
    """Return the line of an event of a pod."""
    pod = pod_manifest(JOB, index, version=version)
    pod["metadata"] |= metadata
    return json.dumps({"type": kind, "object": pod}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    found = {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}
    return json.dumps({"type": "BOOKMARK", "object": found}).encode() + b"\n"


def error(code: int) -> bytes:
    found = {"kind": "Status", "code": code, "message": f"error {code}"}
    return json.dumps({"type": "ERROR", "object": found}).encode() + b"\n"
