"""Build the status of a job whose spec breaks a validation rule.

The API server refuses such jobs. An older CRD may have accepted one; the operator then leaves it
alone until a user edits it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import set_condition
from ddp_operator.reconcile.lifecycle import is_finished

INVALID = "Invalid"
"""Reason of the condition Succeeded, which the STATUS column shows."""


def invalid_spec_status(
    job: Mapping[str, Any], message: str, now: datetime
) -> dict[str, Any] | None:
    """Return the status that reports what is wrong with a job, or None to write nothing.

    Nothing is written when the status reports it already or the job has finished. Nothing is
    written when the status is unreadable, because another version of the operator wrote it.
    """
    try:
        status = DDPJobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return None
    if is_finished(status) or "deletionTimestamp" in job["metadata"]:
        return None
    generation = int(job["metadata"].get("generation", 0))
    reported = set_condition(
        status,
        ConditionType.SUCCEEDED,
        None,
        INVALID,
        message,
        now=now,
        generation=generation,
    ).model_copy(update={"observed_generation": generation})
    if reported == status:
        return None
    return reported.model_dump(mode="json", by_alias=True, exclude_none=True)
