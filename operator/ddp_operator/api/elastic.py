"""Define `DDPJob.spec.elastic`."""

from typing import Annotated

from pydantic import Field, StrictInt

from ddp_operator.api.base import ApiModel, Seconds


class Elastic(ApiModel):
    """Limits between which the job may change its size. Then nodes is the largest size, and the job trains with the nodes that it gets."""  # noqa: E501

    min_nodes: Annotated[StrictInt, Field(ge=1, le=9999)]
    """Smallest number of nodes with which the job trains, 1 to nodes."""
    start_wait_seconds: Seconds = 30
    """Seconds for which the first attempt waits for all nodes, 1 to 31,536,000 (one year). Then it starts with at least minNodes."""  # noqa: E501
    shrink_after_seconds: Seconds = 15
    """Seconds for which the job waits for the replacement of a lost node, 1 to 31,536,000 (one year). Then it continues without it."""  # noqa: E501
    grow_after_seconds: Seconds = 300
    """Shortest time between a change of the size and the next growth, in seconds, 1 to 31,536,000 (one year). The job grows at a step boundary, once for all nodes that wait."""  # noqa: E501
