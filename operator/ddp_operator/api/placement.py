"""Define the models of the spec that select the Kubernetes nodes for the pods of a job."""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from ddp_operator.api.base import ApiModel

HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Label whose value differs between any two Kubernetes nodes."""


class TopologyMode(StrEnum):
    """Strictness of a topology: whether the pods must or only should share a domain."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"


class Topology(ApiModel):
    """Packing of all worker pods into one domain of Kubernetes nodes, for example one rack."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Label of Kubernetes nodes whose value names their domain, for example topology.kubernetes.io/zone."""  # noqa: E501
    mode: TopologyMode = TopologyMode.PREFERRED
    """Required or Preferred. With Required, all pods run in the domain of the first one, and the job waits while that domain has no room for them. With Preferred, pods without room in that domain run in other domains."""  # noqa: E501
