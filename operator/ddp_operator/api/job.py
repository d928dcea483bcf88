"""Parse a DDPJob from a manifest or an API object."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.rules import check_rules
from ddp_operator.api.sizes import oversize
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from ddp_wire import node_ranges
from ddp_wire.orders import Order

_NEEDED_STATUS = frozenset(
    to_camel(name)
    for name in (
        "attempt",
        "attempt_start_time",
        "attempt_spec_hash",
        "pods",
        "members",
        "restarts",
        "infrastructure_restarts",
        "conditions",
    )
)
"""Status fields without which the operator must not act, because it would repeat or forget an attempt."""  # noqa: E501


_FORMATS = {
    "spec.managedBy": "must be DOMAIN/NAME of a controller, for example kueue.x-k8s.io/multikueue",
    "spec.task": "must be module:function, for example my_package.flowers:build",
    "spec.checkpoint.claimName": (
        "must be the name of a claim: lowercase letters, digits, '-' and '.'"
    ),
}
"""Formats of fields in words, which error messages use in place of regular expressions."""


class InvalidJobError(ValueError):
    """Error for a manifest that breaks the schema or a rule. The message is one sentence for its author."""  # noqa: E501


class UnreadableStatusError(InvalidJobError):
    """Error for a status that a newer operator wrote and from which this operator cannot continue."""  # noqa: E501


class Metadata(BaseModel):
    """The part of an object's metadata that the operator uses."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    resource_version: str = Field(default="", alias="resourceVersion")
    generation: int = 0
    creation_timestamp: datetime | None = Field(default=None, alias="creationTimestamp")
    deletion_timestamp: str | None = Field(default=None, alias="deletionTimestamp")


class DDPJob(BaseModel):
    """One DDPJob, as observed in the API server or read from a manifest."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: DDPJobSpec
    status: DDPJobStatus
    unread: tuple[str, ...] = ()
    """Status fields that a newer operator wrote and this operator cannot read."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the namespace and the name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def spec_hash(self) -> str:
        """Return a 16-digit hash of the spec fields that shape the pods, see `pod_shaping`."""
        return self.spec.shaping_hash

    @property
    def nodes(self) -> int:
        """Return the number of nodes that should train in the current attempt, or in the first one.

        An elastic job may train with fewer nodes: see `members`.
        """
        if self.status.pods is None or self.spec.elastic is not None:
            return self.spec.nodes
        return self.status.pods.nodes

    @property
    def pods(self) -> int:
        """Return the number of pods that should exist: those of the nodes, and the spares."""
        return self.nodes + self.spec.spares

    @property
    def members(self) -> tuple[int, ...]:
        """Return the nodes that train in the current attempt, in the order of their ranks.

        An older operator does not record members. Then all nodes train.
        """
        if self.status.members is None:
            return tuple(range(self.nodes))
        return tuple(sorted(node_ranges.from_text(self.status.members)))

    @property
    def order(self) -> Order:
        """Return the order of the current attempt.

        The order names the members only if the job may train without some of its nodes, because
        agents of earlier releases accept no members.
        """
        status = self.status
        if not self.spec.may_leave_nodes_out:
            return Order(status.attempt)
        return Order(status.attempt, frozenset(self.members), save=status.saves_before_attempt)


def first_error(error: ValidationError, root: str = "spec") -> str:
    """Return pydantic's first error as one sentence: field, requirement and given value."""
    first = error.errors(include_url=False)[0]
    field = ".".join([root, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        return f"{field}: unknown field"
    given = "" if first["type"] == "missing" else f", got {first.get('input')!r}"[:200]
    if first["type"] == "string_pattern_mismatch" and field in _FORMATS:
        return f"{field}: {_FORMATS[field]}{given}"
    return f"{field}: {first['msg'][0].lower()}{first['msg'][1:]}{given}"


def _without_nulls(spec: Any) -> Any:
    """Return the spec without null fields, because the API server drops them too."""
    if not isinstance(spec, Mapping):
        return spec
    return {name: value for name, value in spec.items() if value is not None}


def parse_job(manifest: Mapping[str, Any]) -> DDPJob:
    """Return the DDPJob that a manifest or an API object describes.

    Raises:
        InvalidJobError: If the manifest is not a DDPJob of this version, or breaks a rule.
    """
    if manifest.get("apiVersion") != API_VERSION or manifest.get("kind") != KIND:
        given = f"apiVersion {manifest.get('apiVersion')!r}, kind {manifest.get('kind')!r}"
        raise InvalidJobError(
            f"manifest: apiVersion must be {API_VERSION!r} and kind must be {KIND!r}, got {given}"
        )
    try:
        metadata = Metadata.model_validate(manifest.get("metadata") or {})
    except ValidationError as error:
        raise InvalidJobError(first_error(error, "metadata")) from error
    try:
        spec = DDPJobSpec.model_validate(_without_nulls(manifest.get("spec") or {}))
    except ValidationError as error:
        raise InvalidJobError(first_error(error)) from error
    broken = check_rules(metadata.name, spec) or oversize(spec)
    if broken is not None:
        raise InvalidJobError(broken)
    status, unread = _parse_status(manifest.get("status") or {})
    return DDPJob(metadata=metadata, spec=spec, status=status, unread=unread)


def _parse_status(given: Any) -> tuple[DDPJobStatus, tuple[str, ...]]:
    """Return the readable part of the status, and the names of the unreadable fields.

    Raises:
        UnreadableStatusError: The operator cannot read a field that it needs to count attempts.
    """
    if not isinstance(given, Mapping):
        raise UnreadableStatusError(f"status: must be an object, got {given!r}"[:200])
    kept, unread = dict(given), list[str]()
    while True:
        try:
            return DDPJobStatus.model_validate(kept), tuple(unread)
        except ValidationError as error:
            field = str(error.errors(include_url=False)[0]["loc"][0])
            if field not in kept or field in _NEEDED_STATUS:
                raise UnreadableStatusError(first_error(error, "status")) from error
            del kept[field]
            unread.append(field)
