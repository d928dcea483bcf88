"""Define the models of `DDPJob.spec.checkpoint.claimTemplate`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from ddp_operator.api.base import LABEL, ApiModel
from ddp_operator.api.container import Quantity


class AccessMode(StrEnum):
    """Access mode of a claim that lets the trainer write to it."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


class ClaimRetention(StrEnum):
    """Rule for the claim when its job is deleted, as whenDeleted of a StatefulSet."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ClaimTemplate(ApiModel):
    """Template of the PersistentVolumeClaim that the operator creates for the checkpoints."""

    size: Quantity
    """Requested size of the volume, for example 100Gi. The operator lets the claim grow if its storage class allows it, and never makes it smaller."""  # noqa: E501
    storage_class_name: (
        Annotated[str, StringConstraints(pattern=rf"^({LABEL}(\.{LABEL})*)?$", max_length=253)]
        | None
    ) = None
    """Name of the StorageClass. The default is the default class of the cluster. An empty name selects an existing volume without a class. The field cannot be changed."""  # noqa: E501
    access_modes: Annotated[list[AccessMode], Field(min_length=1, max_length=2)] = [  # noqa: RUF012 (frozen)
        AccessMode.READ_WRITE_MANY
    ]
    """Access modes of the volume. The default is ReadWriteMany, because all worker pods mount it. The field cannot be changed."""  # noqa: E501
    when_deleted: ClaimRetention = ClaimRetention.RETAIN
    """Rule for the claim when the job is deleted: Retain or Delete, as in persistentVolumeClaimRetentionPolicy of a StatefulSet. With Delete, Kubernetes deletes the claim and its data with the job."""  # noqa: E501
