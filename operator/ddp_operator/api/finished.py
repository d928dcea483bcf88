"""Read and change the list of finished jobs that a namespace keeps in one ConfigMap.

The list survives the jobs. Users of the namespace may edit it, so no reader trusts it: each entry
is checked and limited, and proves nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from ddp_operator.api.summary import JobSummary
from ddp_operator.limits import FINISHED_JOB_BYTES, FINISHED_JOBS, FINISHED_LIST_BYTES

CONFIG_MAP: Final = "ddpjob-finished"
"""Name of the ConfigMap. Each of its entries is the summary of one job as JSON, by its uid."""
LABELS: Final = {"app.kubernetes.io/part-of": "ddp-trainer"}


def read_finished(config_map: Mapping[str, Any] | None) -> list[JobSummary]:
    """Return the valid entries of a ConfigMap, newest first and at most as many as are kept.

    Args:
        config_map: The ConfigMap, or None if there is none.
    """
    data = (config_map or {}).get("data")
    # A ConfigMap has room for thousands of tiny entries, and each takes time to check.
    given = islice(data.items(), 10 * FINISHED_JOBS) if isinstance(data, Mapping) else ()
    found = [one for uid, text in given if (one := _entry(uid, text)) is not None]
    return sorted(found, key=_age, reverse=True)[:FINISHED_JOBS]


def add_finished(
    config_map: Mapping[str, Any] | None, summary: JobSummary
) -> dict[str, Any] | None:
    """Return the merge patch that adds a job to the ConfigMap, or None if it needs no change.

    The patch removes the oldest entries beyond the limits, and everything that is no valid entry.
    A job that is older than a full list is not added.

    Args:
        config_map: The ConfigMap, or None if there is none.
        summary: Summary of a job that has ended.
    """
    others = [one for one in read_finished(config_map) if one.uid != summary.uid]
    kept = dict[str, str]()
    size = 0
    for one in sorted([*others, summary], key=_age, reverse=True)[:FINISHED_JOBS]:
        text = entry_text(one)
        size += len(text.encode()) + len(one.uid)
        if size > FINISHED_LIST_BYTES:
            break
        kept[one.uid] = text
    if summary.uid not in kept:
        return None
    given = config_map or {}
    old = given.get("data")
    stored: Mapping[str, Any] = old if isinstance(old, Mapping) else {}
    changes: dict[str, Any] = {uid: None for uid in stored if uid not in kept}
    if stored.get(summary.uid) != kept[summary.uid]:
        changes[summary.uid] = kept[summary.uid]
    patch: dict[str, Any] = {"data": changes} if changes else {}
    if given.get("binaryData"):
        patch["binaryData"] = None
    return patch or None


def entry_text(summary: JobSummary) -> str:
    """Return the entry of a job as JSON."""
    return summary.model_dump_json(by_alias=True, exclude_none=True)


def _entry(uid: Any, text: Any) -> JobSummary | None:
    """Return one entry, or None if it is no valid one."""
    if not isinstance(text, str) or len(text) > FINISHED_JOB_BYTES:
        return None
    try:
        summary = JobSummary.model_validate_json(text)
    except ValidationError:
        return None
    return summary if summary.uid == uid else None


def _age(summary: JobSummary) -> tuple[datetime, str]:
    """Return the key by which entries are sorted: the end of the job."""
    return summary.ended, summary.uid
