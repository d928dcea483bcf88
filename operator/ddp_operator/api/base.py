"""What all API models share."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

API_GROUP = "ddp-trainer.dev"
API_VERSION_NAME = "v1alpha1"
API_VERSION = f"{API_GROUP}/{API_VERSION_NAME}"
KIND = "DDPJob"
PLURAL = "ddpjobs"


class ApiModel(BaseModel):
    """A part of a DDPJob: camelCase outside, unknown fields refused, documented by docstrings."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class StatusModel(ApiModel):
    """A part of the status. Fields that another version of the operator wrote are ignored."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
