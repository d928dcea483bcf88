"""Define the models of a job's gang: how its pods are scheduled together, or not at all."""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from ddp_operator.api.base import ApiModel, Name, StatusModel
from ddp_wire.plain_text import PlainText

_Short = Annotated[PlainText, StringConstraints(max_length=1024)]


class GangType(StrEnum):
    """Scheduler that places all pods of a job together."""

    NONE = "None"
    """No gang: each pod is placed as soon as a Kubernetes node has room for it."""
    NATIVE = "Native"
    """Kubernetes' own gang scheduling, from 1.35 on."""
    COSCHEDULING = "Coscheduling"
    """The Coscheduling plugin of kubernetes-sigs/scheduler-plugins."""
    VOLCANO = "Volcano"
    """The Volcano scheduler."""
    KUEUE = "Kueue"
    """Kueue, which admits all pods of a job to a queue together."""


class Gang(ApiModel):
    """Gang scheduling of the worker pods: the pods of the gang get a Kubernetes node together, or none does."""  # noqa: E501

    type: GangType
    """Scheduler that places the pods together: None, Native (Kubernetes 1.35 and later), Coscheduling (scheduler-plugins), Volcano or Kueue. The operator's settings list the types that jobs may use."""  # noqa: E501
    queue: Name | None = None
    """Name of the Volcano queue, or of the LocalQueue of Kueue. The default is the queue in the operator's settings, or else Volcano's own default queue."""  # noqa: E501


class GangStatus(StatusModel):
    """Gang to which the pods of the current attempt belong."""

    type: GangType
    """Scheduler that places the pods together: Native, Coscheduling, Volcano or Kueue."""
    group: _Short
    """Name of the group object in the job's namespace; for Kueue, of the Workload. After a resumption or a change of the spec, the job uses a new group."""  # noqa: E501
    size: int
    """Number of pods in the gang: those of the nodes 0 to size - 1. Other pods are placed for themselves when there is room."""  # noqa: E501
    api_version: _Short
    """API version of the group object."""
    queue: _Short | None = None
    """Name of the Volcano queue, or of the LocalQueue of Kueue."""
