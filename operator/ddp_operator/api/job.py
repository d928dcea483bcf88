"""A DDPJob as an object, and its parsing from what a person or the API server gives."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.rules import check_rules
from ddp_operator.api.spec import DDPJobSpec, pod_shaping
from ddp_operator.api.status import DDPJobStatus


class InvalidJobError(ValueError):
    """A DDPJob does not hold to its schema or rules. The text is one sentence for its author."""


class Metadata(BaseModel):
    """The part of an object's metadata that is used here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    resource_version: str = Field(default="", alias="resourceVersion")
    generation: int = 0
    deletion_timestamp: str | None = Field(default=None, alias="deletionTimestamp")


class DDPJob(BaseModel):
    """One DDPJob, as observed."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: DDPJobSpec
    status: DDPJobStatus

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def spec_hash(self) -> str:
        """Short hash of what the pods are made of; see `pod_shaping`."""
        text = json.dumps(pod_shaping(self.spec), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def sentence(error: ValidationError, root: str = "spec") -> str:
    """The first of pydantic's findings as one sentence: where, what must hold, what was given."""
    first = error.errors(include_url=False)[0]
    where = ".".join([root, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown field"
    given = "" if first["type"] == "missing" else f", got {first.get('input')!r}"[:200]
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{given}"


def _without_nulls(spec: Any) -> Any:
    """The spec as the API server takes it, which drops a field that is null."""
    if not isinstance(spec, Mapping):
        return spec
    return {name: value for name, value in spec.items() if value is not None}


def parse_job(manifest: Mapping[str, Any]) -> DDPJob:
    """Read a DDPJob from a manifest or an API object.

    Raises:
        InvalidJobError: The manifest is no DDPJob of this version, or breaks a rule.
    """
    if manifest.get("apiVersion") != API_VERSION or manifest.get("kind") != KIND:
        given = f"apiVersion {manifest.get('apiVersion')!r}, kind {manifest.get('kind')!r}"
        raise InvalidJobError(
            f"manifest: must be of apiVersion {API_VERSION!r}, kind {KIND!r}, got {given}"
        )
    try:
        metadata = Metadata.model_validate(manifest.get("metadata") or {})
    except ValidationError as error:
        raise InvalidJobError(sentence(error, "metadata")) from error
    try:
        spec = DDPJobSpec.model_validate(_without_nulls(manifest.get("spec") or {}))
    except ValidationError as error:
        raise InvalidJobError(sentence(error)) from error
    broken = check_rules(metadata.name, spec)
    if broken is not None:
        raise InvalidJobError(broken)
    try:
        status = DDPJobStatus.model_validate(manifest.get("status") or {})
    except ValidationError as error:
        raise InvalidJobError(sentence(error, "status")) from error
    return DDPJob(metadata=metadata, spec=spec, status=status)
