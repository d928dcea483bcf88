"""Check the types of the pod fields that a local run reads.

In a cluster the API server checks these types, because the operator copies the job's fields without
validation.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddp_operator.api.job import first_error
from ddp_operator.cluster.base import ClusterError, Manifest

CHECKPOINT_VOLUME = "ddp-checkpoint"
"""Name of the pod volume that holds the checkpoints."""
_ROOT = "the worker pod's spec"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=to_camel)


class _Variable(_Part):
    """Environment variable with a name and a value that Linux accepts."""

    name: Annotated[str, Field(pattern=r"^[^=\x00]+$")]
    value: Annotated[str, Field(pattern=r"^[^\x00]*$")] | None = None


class _Mount(_Part):
    name: str
    mount_path: str
    sub_path: str | None = None


class _Container(_Part):
    name: str
    command: Annotated[list[str], Field(min_length=1)] | None = None
    args: list[str] | None = None
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
    """Check the types of a pod's fields.

    Raises:
        ClusterError: A field has the wrong type. The message names the field.
    """
    try:
        spec = _PodSpec.model_validate(pod["spec"])
    except ValidationError as error:
        raise ClusterError(first_error(error, _ROOT)) from error
    for volume in spec.volumes:
        if volume.name == CHECKPOINT_VOLUME and volume.persistent_volume_claim is None:
            raise ClusterError(f"{_ROOT}.volumes: {volume.name} must be a persistentVolumeClaim")
