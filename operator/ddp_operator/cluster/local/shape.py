"""Types of the parts of a worker pod that a run without a cluster reads.

In a cluster the API server checks them, because the operator passes on what a job states.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddp_operator.api.job import first_error
from ddp_operator.cluster.base import ClusterError, Manifest

CHECKPOINT_VOLUME = "ddp-checkpoint"
"""Name of the volume with the checkpoints of a pod."""
_ROOT = "the worker pod's spec"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=to_camel)


class _Variable(_Part):
    """Environment variable. Linux starts no program with another form of name or value."""

    name: Annotated[str, Field(pattern=r"^[^=\x00]+$")]
    value: Annotated[str, Field(pattern=r"^[^\x00]*$")] | None = None


class _Mount(_Part):
    name: str
    mount_path: str
    sub_path: str | None = None


class _Container(_Part):
    name: str
    command: Annotated[list[str], Field(min_length=1)] | None = None
    env: list[_Variable] | None = None
    volume_mounts: list[_Mount] | None = None


class _ConfigMap(_Part):
    name: str


class _Claim(_Part):
    claim_name: str


class _Volume(_Part):
    name: str
    config_map: _ConfigMap | None = None
    persistent_volume_claim: _Claim | None = None


class _PodSpec(_Part):
    containers: list[_Container]
    volumes: list[_Volume]
    termination_grace_period_seconds: int | None


def check_shape(pod: Manifest) -> None:
    """Check the types in a pod.

    Raises:
        ClusterError: A part has the wrong type. The sentence names it.
    """
    try:
        spec = _PodSpec.model_validate(pod["spec"])
    except ValidationError as error:
        raise ClusterError(first_error(error, _ROOT)) from error
    for volume in spec.volumes:
        if volume.name == CHECKPOINT_VOLUME and volume.persistent_volume_claim is None:
            raise ClusterError(f"{_ROOT}.volumes: {volume.name} must be a persistentVolumeClaim")
