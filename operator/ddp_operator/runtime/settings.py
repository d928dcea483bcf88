"""Settings of the operator, from its environment."""

import os
import socket
from collections.abc import Mapping

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

PREFIX = "DDP_OPERATOR_"


class SettingsError(ValueError):
    """A setting is wrong. The text is one sentence for the administrator."""


class Settings(BaseModel):
    """What an installation decides. Each field is the variable DDP_OPERATOR_<NAME>."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    trainer_image: str
    """Image of jobs that state none."""
    image_pull_policy: str = "IfNotPresent"
    """Pull policy of jobs that state none."""
    namespace: str | None = None
    """The one namespace to serve; all when unset."""
    workers: int = Field(default=8, ge=1, le=256)
    """Jobs that are worked on at a time."""
    resync_seconds: int = Field(default=600, ge=10)
    """How often everything is listed anew, in case a watch has missed something."""
    health_port: int = Field(default=8080, ge=1, le=65535)
    """Port of /healthz and /readyz."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """Least level that is logged."""
    log_format: str = Field(default="text", pattern="^(text|json)$")
    """Lines for people, or one JSON object per line."""
    identity: str = Field(default_factory=socket.gethostname, min_length=1)
    """Name of this replica in the Lease; the pod's."""
    leader_election: bool = True
    """Whether only the holder of a Lease works. Off for a process that is surely alone."""
    lease_namespace: str | None = Field(default=None, validate_default=True)
    """Where the Lease is; the operator's own namespace."""
    lease_name: str = Field(default="ddp-trainer-operator", min_length=1)
    """Name of the Lease."""
    lease_seconds: int = Field(default=15, ge=1)
    """How long others wait after the last renewal that they saw."""
    renew_seconds: float = Field(default=10, gt=0)
    """A leader that could not renew the Lease for this long ends."""
    retry_seconds: float = Field(default=2, gt=0)
    """Between two tries to acquire or to renew the Lease."""

    @field_validator("lease_namespace")
    @classmethod
    def _has_a_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        if not info.data.get("leader_election", True):
            return None
        if value is None:
            raise ValueError(f"must be stated unless {PREFIX}LEADER_ELECTION is false")
        return value

    @field_validator("renew_seconds", "retry_seconds")
    @classmethod
    def _is_shorter(cls, value: float, info: ValidationInfo) -> float:
        """A leader must stop before others begin, and try more than once before it stops."""
        longer = "lease_seconds" if info.field_name == "renew_seconds" else "renew_seconds"
        if value >= info.data.get(longer, float("inf")):
            raise ValueError(f"must be less than {PREFIX}{longer.upper()}")
        return value

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings.

        Raises:
            SettingsError: One is missing or wrong.
        """
        given = os.environ if environment is None else environment
        values = {n: given[v] for n in cls.model_fields if given.get(v := PREFIX + n.upper())}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            raise SettingsError(
                f"{name}: {first['msg']}, got {values.get(str(first['loc'][0]))!r}"
            ) from error
