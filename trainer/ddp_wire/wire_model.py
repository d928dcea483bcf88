"""Base class and bounded value types of the documents that processes exchange."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ddp_wire.plain_text import PlainText


class WireModel(BaseModel):
    """Base of all documents that processes exchange. JSON field names are camelCase.

    A reader ignores unknown fields, so that neighbouring releases can read each other's documents.
    """

    # By default the process keeps the last 16,384 strings that it read, for ever.
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        ser_json_inf_nan="strings",
        cache_strings="keys",
    )

    def to_json(self) -> str:
        """Return this document as one line of JSON without fields that are None."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


UnixSeconds = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Unix time by an agent's clock, in seconds, up to the year 9999. The operator reads it from
untrusted pods."""
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Duration that a rank has measured, in seconds. The operator reads it from untrusted pods."""
Number = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""Whole number that the API server can store."""
Text = Annotated[PlainText, Field(max_length=4096)]
"""Text that is shown to users, without control characters."""
