"""Define the models of the spec that say on which Kubernetes nodes the pods of a job run."""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from ddp_operator.api.base import ApiModel

HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Label whose value differs between any two Kubernetes nodes."""


class TopologyMode(StrEnum):
    """Whether the pods of a job must share a domain, or only should."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"


class Topology(ApiModel):
    """Domain of Kubernetes nodes into which all worker pods are packed, for example one rack."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Label of Kubernetes nodes whose value names their domain, for example topology.kubernetes.io/zone."""  # noqa: E501
    mode: TopologyMode = TopologyMode.PREFERRED
    """Required or Preferred. With Required, all pods run in the domain of the first one, and the job waits while that domain has no room for them. With Preferred, the pods that find no room there run elsewhere."""  # noqa: E501
