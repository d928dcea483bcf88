"""Provide the sample jobs of the operator's admission policy, and the form of its rules."""

from typing import Any

from ddp_operator.api.job import DDPJob, parse_job
from tools.cel import OWNER_UID

JSON = dict[str, Any]
_OPERATOR = "the operator of ddp-trainer"


def sample_job(**spec: Any) -> DDPJob:
    """Return a sample job with the given spec fields."""
    metadata = {"name": "owner-name", "namespace": "n", "uid": OWNER_UID}
    document = {"apiVersion": "ddp-trainer.dev/v1alpha1", "kind": "DDPJob", "metadata": metadata}
    return parse_job({**document, "spec": {"task": "a:b", **spec}})


def full_job() -> DDPJob:
    """Return a sample job that sets every field that affects a pod."""
    return sample_job(
        checkpoint={"claimName": "claim"},
        env=[{"name": "A", "value": "b"}],
        imagePullSecrets=["secret"],
        network={"rdma": {"resource": "rdma/a"}},
        nodeSelector={"a": "b"},
        priorityClassName="high",
        resources={"limits": {"cpu": 1}},
        sharedMemory="1Gi",
        tolerations=[{"operator": "Exists"}],
        topology={"key": "a"},
    )


def validation_rule(expression: str, message: str, named: str = "") -> JSON:
    """Return one validation rule. The CEL expression `named` returns the name of a broken field."""
    text = f"{_OPERATOR} {message}"
    out: JSON = {"expression": expression, "message": text}
    if named:
        out["messageExpression"] = f"'{text}: ' + string({named})"
    return out
