"""Build the documents that the operator sends to the API server."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.builders.kinds import KINDS, row_name
from ddp_operator.cluster.base import ClusterError, ConflictError, Manifest
from ddp_operator.limits import TERMINATING_SECONDS
from ddp_operator.reconcile.plan import Event

_MATURITY = re.compile(r"^(alpha|beta)\d+")
"""Pattern of the part that follows the number in an API version, as in v1alpha1."""
_EVENT_CHARACTERS = 1024
"""Maximum length of an Event's message that the API server accepts, in characters."""
COMPONENT = "ddp-operator"
"""Name of the operator in Events and in the API server's audit log."""


def status_document(job: Manifest, status: Manifest) -> Manifest:
    """Return the body of a status write. The write fails if the job has changed in the meantime."""
    metadata = job["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion")},
        "spec": job["spec"],
        "status": status,
    }


def event_document(job: Manifest, event: Event, now: datetime) -> Manifest:
    """Return a core/v1 Event about a job."""
    metadata, time = job["metadata"], now.strftime("%Y-%m-%dT%H:%M:%SZ")
    identity = {k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{now.timestamp():.6f}".replace(".", "-"),
            "namespace": metadata["namespace"],
        },
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, **identity},
        "type": event.type.value,
        "reason": event.reason,
        "message": event.message[:_EVENT_CHARACTERS],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def config_map_document(
    namespace: str, name: str, labels: Mapping[str, str], patch: Mapping[str, Any]
) -> Manifest:
    """Return a new ConfigMap with the data that a merge patch sets."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "data": {key: text for key, text in patch.get("data", {}).items() if text is not None},
    }


def newest_warning(events: Iterable[Manifest]) -> str | None:
    """Return reason and message of the newest Event, or None if it is not a warning.

    A normal Event after a warning means that the problem is over.
    """
    newest = _newest(events)
    return _sentence(newest) if newest.get("type") == "Warning" else None


def newest_event(events: Iterable[Manifest]) -> str | None:
    """Return reason and message of the newest Event, or None without an Event."""
    newest = _newest(events)
    return _sentence(newest) if newest else None


def _newest(events: Iterable[Manifest]) -> Manifest:
    """Return the newest Event. Of two at the same time, return the warning."""
    return max(events, key=lambda e: (_time_of(e), e.get("type") == "Warning"), default={})


def _sentence(event: Manifest) -> str:
    text = f"{event.get('reason') or event.get('type')}: {event.get('message') or ''}"
    return " ".join(text.split())[:_EVENT_CHARACTERS]


def _time_of(event: Manifest) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    found = next((time for time in times if time), event["metadata"].get("creationTimestamp") or "")
    return str(found)[: len("2026-03-01T12:00:00")]  # Some have microseconds, others have none.


def resource_of(path: str) -> str:
    """Return the plural of the resource in a path of the API server, with its subresource.

    The result contains no names of objects, so that few different values exist.
    """
    _, _, rest = path.partition("/v1")
    parts = _MATURITY.sub("", rest).strip("/").split("/")
    if parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join(part for part in (*parts[:1], *parts[2:3]) if part)


def namespace_in(path: str) -> str:
    """Return the namespace in a path of the API server, or "" for a path without namespace."""
    _, found, rest = path.partition("/namespaces/")
    return rest.partition("/")[0] if found else ""


def refusal(status: int, text: bytes, retry_after: str | None) -> ClusterError:
    """Return an error for a response with an HTTP status of 400 or above."""
    try:
        document = json.loads(text)
        message = document["message"]
    except (ValueError, KeyError, TypeError):
        document, message = {}, f"HTTP status {status}"
    if _namespace_is_terminating(document):
        wait: float | None = TERMINATING_SECONDS
    else:
        wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    kind = ConflictError if status == HTTPStatus.CONFLICT else ClusterError
    reason = str(document.get("reason") or "")
    return kind(str(message), status=status, reason=reason, retry_after=wait)


def _namespace_is_terminating(document: Manifest) -> bool:
    causes = (document.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def lost_fields(existing: Manifest, manifest: Manifest) -> Manifest:
    """Return a merge patch that restores the labels and owned fields of a changed child."""
    lost: Manifest = {}
    labels = existing["metadata"].get("labels") or {}
    missing = {k: v for k, v in manifest["metadata"]["labels"].items() if labels.get(k) != v}
    if missing:
        lost["metadata"] = {"labels": missing}
    kind = KINDS[row_name(manifest)]
    return lost | _merge_patch(kind.owned_part(existing), kind.owned_part(manifest))


def _merge_patch(found: Manifest, wanted: Manifest) -> Manifest:
    """Return the merge patch (RFC 7386) that turns the first object into the second."""
    patch: Manifest = dict.fromkeys(found.keys() - wanted.keys())
    for key, value in wanted.items():
        now = found.get(key)
        if value == now:
            continue
        nested = isinstance(value, dict) and isinstance(now, dict)
        patch[key] = _merge_patch(now or {}, value) if nested else value
    return patch
