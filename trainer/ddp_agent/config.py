"""Configuration of the agent, from the environment that the operator sets.

Process: agent.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError, field_validator

from ddp_agent.hang_limits import HangLimits
from ddp_wire import contract
from ddp_wire.contract import Env
from ddp_wire.expansion import expand

_RESERVE_SECONDS = 15.0
"""Seconds of a pod's grace period that remain after the ranks must have stopped."""


class BadEnvironmentError(ValueError):
    """Error for a missing or invalid variable. The text is one sentence."""


class AgentConfig(BaseModel):
    """Configuration of one worker container."""

    model_config = ConfigDict(frozen=True)

    job_uid: str = Field(alias=Env.JOB_UID, min_length=1)
    job_name: str = Field(alias=Env.JOB_NAME, default="")
    node_index: int = Field(alias=Env.NODE_INDEX, ge=0)
    nodes: int = Field(alias=Env.NODES, ge=1)
    procs_per_node: int = Field(alias=Env.PROCS_PER_NODE, ge=1)
    rendezvous_host: str = Field(alias=Env.RENDEZVOUS_HOST)
    address_pattern: str = Field(alias=Env.ADDRESS_PATTERN, default="")
    rendezvous_port_base: int = Field(
        alias=Env.RENDEZVOUS_PORT_BASE, default=contract.RENDEZVOUS_PORT_BASE
    )
    pod_address: str = Field(alias=Env.POD_ADDRESS)
    bind: str = Field(alias=Env.AGENT_BIND, default="")
    port: int = Field(alias=Env.AGENT_PORT, default=contract.AGENT_PORT)
    secret: str = Field(alias=Env.AGENT_SECRET, default="", repr=False)
    job_secret: str = Field(alias=Env.JOB_SECRET, default="", repr=False)
    barrier_port: int = Field(alias=Env.BARRIER_PORT, default=contract.BARRIER_PORT)
    pod_info_dir: Path = Field(alias=Env.POD_INFO_DIR, default=Path(contract.POD_INFO_DIR))
    termination_log: Path = Field(alias=Env.TERMINATION_LOG, default=Path(contract.TERMINATION_LOG))
    command: str | None = Field(alias=Env.COMMAND, default=None)
    task: str | None = Field(alias=Env.TASK, default=None)
    standby: bool = Field(alias=Env.STANDBY, default=False)
    grace_seconds: float = Field(alias=Env.GRACE_SECONDS, default=60.0, ge=0.0)
    checkpoint_dir: Path | None = Field(alias=Env.CHECKPOINT_DIR, default=None)
    hang: Json[HangLimits] = Field(alias=Env.HANG, default=HangLimits())
    variables: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Environment variables that the command may refer to: the container's, without the secrets."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "AgentConfig":
        """Read and validate the environment variables.

        Raises:
            BadEnvironmentError: A variable is missing or invalid.
        """
        given = dict(os.environ if environment is None else environment)
        if Env.JOB_UID not in given:
            raise BadEnvironmentError(
                f"{Env.JOB_UID} must be set, as it is in the pods of a DDPJob; to train by hand,"
                " run ddp-trainer or torchrun instead of the image's entrypoint"
            )
        try:
            config = cls.model_validate({**given, "variables": _without_secrets(given)})
        except ValidationError as error:
            first = error.errors()[0]
            raise BadEnvironmentError(f"{first['loc'][0]}: {first['msg']}") from error
        if (config.command is None) == (config.task is None):
            raise BadEnvironmentError(f"exactly one of {Env.COMMAND} and {Env.TASK} must be set")
        return config

    @field_validator("address_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        """Check that the address pattern has the field `index` and no other field.

        Raises:
            ValueError: The pattern has another field, or no index.
        """
        problem = f"must be a format string with the field index, got {pattern!r}"
        try:
            first, second = pattern.format(index=0), pattern.format(index=1)
        except (LookupError, ValueError) as error:
            raise ValueError(problem) from error
        if pattern and first == second:
            raise ValueError(problem)
        return pattern

    @property
    def stop_grace_seconds(self) -> float:
        """Return the seconds in which the ranks must save and stop at the end of the run.

        The remaining grace period of the pod is reserved for the last status and the last log
        lines.
        """
        return max(self.grace_seconds - _RESERVE_SECONDS, self.grace_seconds / 2.0)

    def rank_command(self) -> list[str]:
        """Return the command of each rank. For a task, return a module name and its arguments."""
        if self.command is not None:
            return [expand(word, self.variables) for word in json.loads(self.command)]
        return ["-m", "ddp_trainer", "train"]


def _without_secrets(given: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in given.items() if k not in {Env.AGENT_SECRET, Env.JOB_SECRET}}
