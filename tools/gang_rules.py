"""Build the admission rules for the fields and annotations that connect pods to a gang."""

from ddp_operator.builders.gangs import kueue
from ddp_operator.builders.gangs.schedulers import VOLCANO_GROUP
from ddp_wire import contract

GANG_ANNOTATIONS = (contract.ANNOTATION_GANG_GROUP, VOLCANO_GROUP, *kueue.GROUP_ANNOTATIONS)
"""Annotations of a pod that describe its group."""


def gang_fields() -> dict[str, str]:
    """Return the pod spec fields that name the pod's group, each with a rule for its value."""
    group = f"object.metadata.annotations['{contract.ANNOTATION_GANG_GROUP}']"
    return {
        "workloadRef": f"object.spec.workloadRef.name == {group}",
        "schedulingGroup": f"object.spec.schedulingGroup.?podGroupName.orValue('') == {group}",
    }
