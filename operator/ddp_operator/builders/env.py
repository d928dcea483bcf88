"""Build the environment of the worker container."""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.sizes import command_text, config_text
from ddp_operator.builders import names
from ddp_operator.builders.host_ports import ports_of
from ddp_operator.builders.network_profiles import PROFILES
from ddp_wire import expansion
from ddp_wire.contract import (
    BARRIER_PORT,
    CHECKPOINT_MOUNT,
    LABEL_RACK,
    LABEL_ZONE,
    Env,
)

_NODE_FIELDS = {
    Env.NODE_NAME: "spec.nodeName",
    Env.RACK: f"metadata.labels['{LABEL_RACK}']",
    Env.ZONE: f"metadata.labels['{LABEL_ZONE}']",
}
"""Variables that describe the pod's location, from pod fields. An absent label gives an empty
value."""
_HOST_NETWORK_FIELDS = {Env.AGENT_BIND: "status.podIP"}
"""Variables of pods on the network of their Kubernetes node. The agent and the rendezvous store
listen on the address by which the other pods know the node, and on no other one."""


def checkpoint_path(job: DDPJob) -> str:
    """Return the run's directory within its claim: `checkpoint.path`, or a unique directory."""
    given = job.spec.checkpoint.path if job.spec.checkpoint else None
    return given or unique_path(job.metadata.name, job.metadata.uid)


def unique_path(name: str, uid: str) -> str:
    """Return the unique directory of a job that sets no `checkpoint.path`."""
    return f"{name}-{uid}"


def checkpoint_directory(job: DDPJob) -> str | None:
    """Return the checkpoint directory as CLAIM/PATH, or None for a job without checkpoints."""
    claim = names.claim_name(job)
    return None if claim is None else f"{claim}/{checkpoint_path(job)}"


def build_env(job: DDPJob, index: int, log_format: str = "text") -> list[dict[str, Any]]:
    """Return the variables of the wire contract, of `spec.network` and of `spec.env`.

    The variables of `spec.env` come last, because the last of several equal names takes effect.
    """
    variables = _contract(job, index, log_format) | workload_variables(job) | _network(job)
    from_user = [e.model_dump(by_alias=True, exclude_none=True) for e in job.spec.env or []]
    fields = _NODE_FIELDS | (_HOST_NETWORK_FIELDS if job.spec.uses_host_network else {})
    from_fields = [
        {"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    # The kubelet expands references in every value. Those of a command are left to the agent, which
    # knows all variables, and a configuration has none.
    fixed = [{"name": name, "value": expansion.escape(v)} for name, v in variables.items()]
    return fixed + from_fields + from_user


def _contract(job: DDPJob, index: int, log_format: str) -> dict[str, str]:
    ports = ports_of(job)
    out: dict[str, str] = {
        Env.JOB_NAME: job.metadata.name,
        Env.JOB_NAMESPACE: job.metadata.namespace,
        Env.JOB_UID: job.metadata.uid,
        Env.NODE_INDEX: str(index),
        Env.NODES: str(job.nodes),
        Env.PROCS_PER_NODE: str(job.spec.ranks_per_node),
        Env.RENDEZVOUS_HOST: names.pod_address(job, 0),
        Env.ADDRESS_PATTERN: names.address_pattern(job),
        Env.RENDEZVOUS_PORT_BASE: str(ports.rendezvous),
        Env.POD_ADDRESS: names.pod_address(job, index),
        Env.AGENT_PORT: str(ports.agent),
        Env.LOG_FORMAT: log_format,
        Env.STANDBY: str(job.spec.uses_standby).lower(),
    }
    if ports.barrier != BARRIER_PORT:
        out[Env.BARRIER_PORT] = str(ports.barrier)
    return out


def checkpoint_variables(job: DDPJob) -> dict[Env, str]:
    """Return the variable with the directory of the checkpoints, if the job has checkpoints."""
    if job.spec.checkpoint is None:
        return {}
    return {Env.CHECKPOINT_DIR: f"{CHECKPOINT_MOUNT}/{checkpoint_path(job)}"}


def workload_variables(job: DDPJob) -> dict[str, str]:
    """Return the variables that tell the agent which program the ranks run, and its settings."""
    spec = job.spec
    out: dict[Env, str] = {}
    if spec.command is not None:
        out[Env.COMMAND] = command_text(spec)
    if spec.task is not None:
        out[Env.TASK] = spec.task
        out[Env.CONFIG] = config_text(spec)
    out |= checkpoint_variables(job)
    if spec.checkpoint is not None:
        out[Env.CHECKPOINT_KEEP] = str(spec.checkpoint.keep)
        if spec.checkpoint.every_steps is not None:
            out[Env.CHECKPOINT_EVERY_STEPS] = str(spec.checkpoint.every_steps)
        if spec.checkpoint.every_seconds is not None:
            out[Env.CHECKPOINT_EVERY_SECONDS] = str(spec.checkpoint.every_seconds)
        if spec.checkpoint.start_over:
            out[Env.CHECKPOINT_START_OVER] = "true"
    if spec.hang is not None:
        out[Env.HANG] = spec.hang.model_dump_json(by_alias=True)
    if spec.gpus_per_node:
        out[Env.GPUS_PER_NODE] = str(spec.gpus_per_node)
    return {str(k): v for k, v in out.items()}


def _network(job: DDPJob) -> dict[str, str]:
    network = job.spec.network
    out: dict[str, str] = {}
    if network is not None and network.profile is not None:
        out |= PROFILES[network.profile].variables
    if network is not None and network.interface is not None:
        out |= {"NCCL_SOCKET_IFNAME": network.interface, "GLOO_SOCKET_IFNAME": network.interface}
    if network is not None and network.nccl_debug is not None:
        out["NCCL_DEBUG"] = network.nccl_debug.value.upper()
    return out
