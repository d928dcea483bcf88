"""Build the status of a job whose spec breaks a validation rule.

The API server refuses most of these jobs. It accepts a job that an older CRD allows, or whose
`config` only the training loop refuses. The operator ignores an invalid job until a user edits it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders.loop_config import config_error
from ddp_operator.reconcile.conditions import INVALID, set_condition
from ddp_operator.reconcile.kstatus import with_kstatus_conditions
from ddp_operator.reconcile.lifecycle import is_finished


def refused_config(job: DDPJob) -> str | None:
    """Return an error message about a `config` with which a job cannot start, or None.

    The check applies only to pods that will be created with the default image, which has the
    operator's own version. Another image may contain another version of the loop.
    """
    starts = not job.spec.suspend and job.status.attempt_spec_hash != job.spec_hash
    if not starts or job.spec.image is not None or is_finished(job.status):
        return None
    return config_error(job)


def invalid_spec_status(
    job: Mapping[str, Any], message: str, now: datetime
) -> dict[str, Any] | None:
    """Return a status that reports the error in a job's spec, or None to write nothing.

    Write nothing if the status already reports the error or the job has finished. Write nothing if
    the status is unreadable, because another version of the operator wrote it.
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
    reported = with_kstatus_conditions(reported, now, generation)
    return reported.model_dump(mode="json", by_alias=True, exclude_none=True)
