"""Report a job whose pods the installation forbids, or that asks for a gang it does not offer.

The chart's ValidatingAdmissionPolicy refuses such jobs. A job may be older than the policy, or the
cluster may lack the admission policy.
"""

from ddp_operator.api.pod_policy import forbidden_field
from ddp_operator.api.status import ConditionType
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile.conditions import ConditionWriter
from ddp_operator.reconcile.gangs import why_no_gang
from ddp_operator.reconcile.invalid_spec import INVALID
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import CreatePod, Event, EventType, Plan
from ddp_operator.reconcile.world import World


def without_forbidden_pods(world: World, plan: Plan, defaults: Defaults) -> Plan:
    """Return the plan, or one that reports the forbidden field and leaves the job alone.

    Pods that run already keep running and restart in place: a stricter policy ends no attempt.
    """
    if not _needs_new_pods(world, plan):
        return plan
    sentence = forbidden_field(world.job.spec, defaults.pod_template, defaults.annotations)
    sentence = sentence or why_no_gang(world.job, defaults)
    if sentence is None:
        return plan
    out = ConditionWriter(world, world.job.status)
    out.set(ConditionType.SUCCEEDED, None, INVALID, sentence)
    if out.status == world.job.status:
        return Plan(out.status)
    return Plan(out.status, events=(Event(EventType.WARNING, INVALID, sentence),))


def _needs_new_pods(world: World, plan: Plan) -> bool:
    """Return whether a plan creates pods, or replaces all of them because the spec was changed."""
    job = world.job
    if is_finished(plan.status) or job.spec.suspend:
        return False
    changed = job.status.attempt_spec_hash != job.spec_hash
    return changed or any(isinstance(action, CreatePod) for action in plan.actions)
