"""The status of a job that breaks a rule.

The API server refuses such jobs. One that an older CRD let in is left alone until it is edited.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import set_condition
from ddp_operator.reconcile.life import is_finished

INVALID = "Invalid"
"""What the STATUS column shows of it."""


def with_invalid_spec(
    job: Mapping[str, Any], sentence: str, now: datetime
) -> dict[str, Any] | None:
    """The job's status that says what is wrong; None where nothing is to be said.

    That is where it says so already, where the job has finished, and where its status cannot be
    read: what another version wrote is not to be overwritten.
    """
    try:
        status = DDPJobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return None
    if is_finished(status) or "deletionTimestamp" in job["metadata"]:
        return None
    generation = int(job["metadata"].get("generation", 0))
    told = set_condition(
        status,
        ConditionType.SUCCEEDED,
        None,
        INVALID,
        sentence,
        now=now,
        generation=generation,
    ).model_copy(update={"observed_generation": generation})
    if told == status:
        return None
    return told.model_dump(mode="json", by_alias=True, exclude_none=True)
