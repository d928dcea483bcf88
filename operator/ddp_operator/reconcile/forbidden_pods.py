"""Report a job whose pods, network, gang or claim the operator's settings forbid.

The chart's ValidatingAdmissionPolicy refuses such jobs. The operator reports a job that is older
than the policy, or a job in a cluster without the policy.
"""

from ddp_operator.api.pod_policy import forbidden_field
from ddp_operator.api.status import ConditionType
from ddp_operator.builders.claim import build_claim
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile.conditions import INVALID, ConditionWriter
from ddp_operator.reconcile.gangs import why_no_gang
from ddp_operator.reconcile.host_ports import why_no_host_network
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import CreatePod, Event, EventType, Plan
from ddp_operator.reconcile.world import World


def without_forbidden_pods(world: World, plan: Plan, defaults: Defaults) -> Plan:
    """Return the plan, or a plan that only reports the forbidden field.

    Running pods keep running and restart in place, because a stricter policy ends no attempt.
    """
    if not _needs_new_pods(world, plan):
        return plan
    sentence = forbidden_field(world.job.spec, defaults.pod_template, defaults.annotations)
    sentence = sentence or why_no_host_network(world.job.spec, defaults.host_ports)
    sentence = sentence or why_no_gang(world.job, defaults) or _why_no_claim(world, defaults)
    if sentence is None:
        return plan
    out = ConditionWriter(world, world.job.status)
    out.set(ConditionType.SUCCEEDED, None, INVALID, sentence)
    if out.status == world.job.status:
        return Plan(out.status)
    return Plan(out.status, events=(Event(EventType.WARNING, INVALID, sentence),))


def _why_no_claim(world: World, defaults: Defaults) -> str | None:
    if defaults.checkpoint_claims or build_claim(world.job) is None:
        return None
    return (
        "spec.checkpoint.claimTemplate: must not be set, because checkpointClaims of the chart is"
        " false; name an existing claim in claimName"
    )


def _needs_new_pods(world: World, plan: Plan) -> bool:
    """Return whether a plan creates pods, or replaces all pods because of a changed spec."""
    job = world.job
    if is_finished(plan.status) or job.spec.suspend:
        return False
    changed = job.status.attempt_spec_hash != job.spec_hash
    return changed or any(isinstance(action, CreatePod) for action in plan.actions)
