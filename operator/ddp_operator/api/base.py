"""Define the names of the API, and the base classes and common fields of its pydantic models."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints
from pydantic.alias_generators import to_camel

API_GROUP = "ddp-trainer.dev"
API_VERSION_NAME = "v1alpha1"
API_VERSION = f"{API_GROUP}/{API_VERSION_NAME}"
KIND = "DDPJob"
PLURAL = "ddpjobs"
CONTROLLER_NAME = f"{API_GROUP}/operator"
"""Value of `spec.managedBy` that names this operator."""

Seconds = Annotated[StrictInt, Field(ge=1, le=31_536_000)]
"""Duration in whole seconds, at most one year."""
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""Regular expression of a DNS label."""
Name = Annotated[
    str, StringConstraints(pattern=rf"^{LABEL}(\.{LABEL})*$", min_length=1, max_length=253)
]
"""Name of a Kubernetes object, a DNS subdomain."""


class ApiModel(BaseModel):
    """Base class of all models of a DDPJob.

    JSON names are camelCase, unknown fields are rejected, and docstrings of attributes become field
    descriptions.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class StatusModel(ApiModel):
    """Base class of all models of the status.

    Unknown fields are ignored because another version of the operator may have written them.
    """

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
