"""Build the rules about the claims that the operator creates for checkpoints."""

from typing import Any

from ddp_operator.api.claim import AccessMode
from ddp_operator.builders.claim import build_claim
from ddp_wire import contract
from tools.cel import keys, literal, quoted
from tools.policy_samples import sample_job, validation_rule

JSON = dict[str, Any]

_PROTECTION = ["kubernetes.io/pvc-protection"]
"""Finalizers that the API server adds to a claim, so that no used claim disappears."""
_LABELS = "object.metadata.?labels.orValue({})"


def claim_rules() -> JSON:
    """Return the rules about a new claim and about a changed one.

    Raises:
        LookupError: The builder sets a field of a claim without a rule.
    """
    template = {"size": 1, "storageClassName": "a", "whenDeleted": "Delete"}
    job = sample_job(checkpoint={"claimTemplate": template})
    built = build_claim(job)
    if built is None or set(built["spec"]) != {"accessModes", "resources", "storageClassName"}:
        raise LookupError(f"no rule states all fields of the built claim {built}")
    name = built["metadata"]["name"].removeprefix(job.metadata.name)
    labels = built["metadata"]["labels"]
    constant = {k: v for k, v in labels.items() if v not in (job.metadata.name, job.metadata.uid)}
    named = (
        f"object.metadata.name"
        f" == {_LABELS}[?'{contract.LABEL_JOB_NAME}'].orValue('') + '{name}'"
        f" && {_LABELS}[?'{contract.LABEL_JOB_UID}'].orValue('') != ''"
    )
    labelled = [f"{_LABELS}[?'{k}'].orValue('') == '{v}'" for k, v in constant.items()]
    spec = "object.spec"
    sized = f"{keys(f'{spec}.resources', ['requests'])}"
    sized += f" && {keys(f'{spec}.resources.requests', ['storage'])}"
    modes = quoted(mode.value for mode in AccessMode)
    created = [
        named,
        *labelled,
        _owned(built["metadata"]["ownerReferences"][0]),
        "!has(object.metadata.generateName)",
        f"object.metadata.?finalizers.orValue([]).all(f, f in {quoted(_PROTECTION)})",
        keys(spec, [*built["spec"], "volumeMode"]),
        f"{spec}.?volumeMode.orValue('Filesystem') == 'Filesystem'",
        f"{spec}.accessModes.all(m, m in {modes})",
        sized,
    ]
    text = "may create only the claim of a job's claimTemplate, with the labels of that job"
    kept = "may change only the size and the owner of a claim that it created"
    return {
        "created": validation_rule(" && ".join(created), text),
        "changed": validation_rule(" && ".join([named, *_unchanged(constant), sized]), kept),
    }


def _owned(owner: JSON) -> str:
    """Return the rule that a claim has no owner or is owned by the job that its labels name."""
    constant = {k: v for k, v in owner.items() if k not in {"name", "uid", "blockOwnerDeletion"}}
    rules = [f"has(o.{key}) && o.{key} == {literal(value)}" for key, value in constant.items()]
    rules += [
        "!o.?blockOwnerDeletion.orValue(false)",
        f"o.uid == {_LABELS}[?'{contract.LABEL_JOB_UID}'].orValue('')",
        f"o.name == {_LABELS}[?'{contract.LABEL_JOB_NAME}'].orValue('')",
    ]
    return f"object.metadata.?ownerReferences.orValue([]).all(o, {' && '.join(rules)})"


def _unchanged(constant: JSON) -> list[str]:
    """Return the rules that a change keeps all but the size, the owner and lost labels."""
    before = "oldObject.metadata.?labels.orValue({})"
    restored = f" || k == '{contract.LABEL_JOB_NAME}'"
    restored += "".join(f" || (k == '{k}' && {_LABELS}[k] == '{v}')" for k, v in constant.items())
    same = "k in oldObject.spec && object.spec[k] == oldObject.spec[k]"
    owners = "object.metadata.?ownerReferences"
    owner = {"apiVersion": "ddp-trainer.dev/v1alpha1", "kind": "DDPJob", "controller": True}
    return [
        f"{before}[?'{contract.LABEL_JOB_UID}'] == {_LABELS}[?'{contract.LABEL_JOB_UID}']",
        f"{before}.all(k, k in {_LABELS})",
        f"{_LABELS}.all(k, {before}[?k].orValue('') == {_LABELS}[k]{restored})",
        f"({owners} == oldObject.metadata.?ownerReferences || {_owned(owner)})",
        "object.metadata.?finalizers == oldObject.metadata.?finalizers",
        "object.metadata.?annotations == oldObject.metadata.?annotations",
        "oldObject.spec.all(k, k in object.spec)",
        f"object.spec.all(k, k == 'resources' || ({same}))",
    ]
