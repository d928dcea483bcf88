"""Build the admission rules that the pods of init steps do not share with worker pods."""

from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.init_pod import build_init_pod
from ddp_wire import contract
from tools.policy_samples import sample_job

_IS_INIT = "variables.initStep != ''"
OF_WORKER = "variables.initStep == ''"
"""Rule about a field that only worker pods may have."""
_WORKERS_ONLY = ("hostname", "subdomain")
"""Fields of worker pods that no pod of an init step has."""


def of_each_kind(field: str, rule: str) -> str:
    """Return the rule about a field of a worker pod, extended to the pods of init steps.

    Raises:
        LookupError: The builder sets a field of an init pod for which no rule is stated.
    """
    if field in _WORKERS_ONLY:
        return f"{_IS_INIT} ? !has(object.spec.{field}) : ({rule})"
    return f"{_IS_INIT} ? ({_container()}) : ({rule})" if field == "containers" else rule


def _container() -> str:
    """Return the rule about the only container of an init step, which runs any command."""
    steps = [{"name": "a", "command": ["b"]}]
    job = sample_job(init=steps)
    assert job.spec.init is not None
    pod = build_init_pod(job, job.spec.init[0], 1, Defaults("i"))
    if set(pod["spec"]) & {"initContainers", *_WORKERS_ONLY}:
        raise LookupError(f"an init pod has fields without a rule: {sorted(pod['spec'])}")
    rules = [
        f"c.name == '{contract.WORKER_CONTAINER}'",
        "has(c.command) && !has(c.args) && !has(c.livenessProbe) && !has(c.readinessProbe)",
        "c.securityContext.?readOnlyRootFilesystem.orValue(false)",
        "c.securityContext.?capabilities.orValue({}).all(k, k == 'drop')",
    ]
    return (
        f"size(object.spec.containers) == 1 && object.spec.containers.all(c, {' && '.join(rules)})"
    )
