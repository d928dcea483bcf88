"""Build the status of a job whose spec breaks a validation rule.

The API server refuses most of them. It accepts those that an older CRD allows, and those whose
`config` the training loop refuses. The operator leaves such a job alone until a user edits it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders.loop_config import config_error
from ddp_operator.reconcile.conditions import set_condition
from ddp_operator.reconcile.lifecycle import is_finished

INVALID = "Invalid"
"""Reason of the condition Succeeded, which the STATUS column shows."""


def refused_config(job: DDPJob) -> str | None:
    """Return one sentence about the `config` of a job that cannot start with it, or None.

    Only pods that do not exist yet run the default image, which is of the operator's own version.
    Another image may contain another version of the loop.
    """
    starts = not job.spec.suspend and job.status.attempt_spec_hash != job.spec_hash
    if not starts or job.spec.image is not None or is_finished(job.status):
        return None
    return config_error(job)


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
