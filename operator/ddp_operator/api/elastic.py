"""Define `DDPJob.spec.elastic`."""

from typing import Annotated

from pydantic import Field, StrictInt

from ddp_operator.api.base import ApiModel, Seconds


class Elastic(ApiModel):
    """Limits for automatic changes of the job's size. `nodes` is then the largest size, and the job trains with fewer nodes while others are missing."""  # noqa: E501

    min_nodes: Annotated[StrictInt, Field(ge=1, le=9999)]
    """Smallest number of nodes with which the job trains, 1 to nodes."""
    start_wait_seconds: Seconds = 30
    """Seconds that the first attempt waits for all nodes, 1 to 31,536,000 (one year). Then it starts if at least minNodes are ready."""  # noqa: E501
    shrink_after_seconds: Seconds = 15
    """Seconds that the job waits for the replacement of a lost node, 1 to 31,536,000 (one year). Then it continues without that node."""  # noqa: E501
    grow_after_seconds: Seconds = 300
    """Minimum seconds between a change of the size and the next growth, 1 to 31,536,000 (one year). The job grows between two updates, by all waiting nodes at once."""  # noqa: E501
