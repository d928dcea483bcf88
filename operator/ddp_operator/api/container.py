"""Define the models and types of container fields that several parts of the spec share."""

from typing import Annotated

from pydantic import Field, JsonValue, StrictInt, StringConstraints

from ddp_operator.api.base import ApiModel

Text = Annotated[str, StringConstraints(max_length=4096)]
RawObject = Annotated[
    dict[str, JsonValue], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""Kubernetes object that the operator copies into the pods without validation."""
_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
Quantity = Annotated[
    StrictInt | Annotated[str, StringConstraints(pattern=_QUANTITY)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}),
]
"""A Kubernetes quantity, for example 500m or 2Gi."""


class EnvVar(ApiModel):
    """One environment variable of the worker container."""

    name: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=253)]
    """Name of the variable, at most 253 characters. ddp-trainer reserves names that begin with DDP_."""  # noqa: E501
    value: Annotated[str, StringConstraints(max_length=32768)] | None = None
    """Value of the variable, at most 32,768 characters."""
    value_from: RawObject | None = None
    """Source of the value, as in a pod: configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef."""  # noqa: E501


class Resources(ApiModel):
    """Compute resources of each worker pod, except GPUs."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """Resources that the scheduler reserves for each pod, for example cpu: 4, memory: 16Gi."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """Largest amounts of resources that each pod may use, for example memory: 32Gi."""
