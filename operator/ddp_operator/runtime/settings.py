"""Settings of the operator, from its environment."""

import os
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
