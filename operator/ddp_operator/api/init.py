"""Define the models of `DDPJob.spec.init` and of its progress in the status."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field, StrictInt, StringConstraints

from ddp_operator.api.base import LABEL, ApiModel, StatusModel
from ddp_operator.api.container import EnvVar, Resources, Text
from ddp_wire.plain_text import PlainText

StepName = Annotated[str, StringConstraints(pattern=rf"^{LABEL}$", max_length=63)]
"""Name of an init step, a DNS label."""
ImportPath = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=512,
    ),
]
"""Import path of a function: package.module:function."""
_ShortText = Annotated[PlainText, StringConstraints(max_length=1024)]


class InitStep(ApiModel):
    """One step that runs once per job before the ranks, for example a download of data."""

    name: StepName
    """Name of the step, at most 63 characters. Its pods are named NAME-init-STEP-TRY."""
    task: ImportPath | None = None
    """Import path of a function that the trainer image calls with the job's config, for example my_package.data:fetch. A step sets either task or command."""  # noqa: E501
    command: Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None
    """Command of the step's container, for example [rclone, copy, 'remote:data', /data]."""
    args: Annotated[list[Text], Field(max_length=256)] | None = None
    """Arguments of the command."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Container image of the step. The default is the image of the worker pods."""
    env: (
        Annotated[
            list[EnvVar],
            Field(
                max_length=64,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Environment variables of the step, in addition to those of spec.env."""
    resources: Resources | None = None
    """Compute resources of the step's pod. It has none of the workers' resources and no GPUs."""
    max_retries: Annotated[StrictInt, Field(ge=0, le=100)] = 6
    """Maximum number of retries after failures of the step, 0 to 100. One more failure fails the job. A lost pod or Kubernetes node costs no retry."""  # noqa: E501


class InitStatus(StatusModel):
    """Progress of the init steps of a job."""

    spec_hash: _ShortText
    """Hash of the spec.init that this progress describes. Another spec.init runs from its first step."""  # noqa: E501
    completed: int = 0
    """Number of completed steps. They never run again."""
    step: _ShortText | None = None
    """Name of the current step. Absent when all steps have completed."""
    tries: int = 0
    """Number of the current try of the step, from 1. The step reads it in DDP_INIT_TRY."""
    failures: int = 0
    """Number of failed tries of the current step. They count against its maxRetries."""
    start_time: datetime | None = None
    """Time at which the current try starts."""
    message: _ShortText | None = None
    """Reason for the end of the previous try of the step, as a sentence."""


def init_hash(steps: Sequence[InitStep]) -> str:
    """Return a 16-digit hash of the init steps of a job."""
    given = [step.model_dump(mode="json", by_alias=True, exclude_defaults=True) for step in steps]
    text = json.dumps(given, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
