"""Random updates of the operator's own objects, compared with the changes that it may make."""

import asyncio
import copy
from typing import Any

import pytest

from tests.api.client import Api, RefusedError, path_of
from tests.api.control_plane import ControlPlane
from tests.api.mutations import named_mutations, random_mutations
from tests.api.test_operator_policy import STRICT, children_of, strict_release
from tests.operator.support import job_manifest

pytestmark = pytest.mark.api

JSON = dict[str, Any]
MUTATIONS, SEED = 200, 11
_WITHOUT_POWER = ("managedFields", "resourceVersion", "generation", "generateName")
"""Fields that the API server sets at a write, or that have no effect once an object exists."""
_ATTEMPT = "ddp-trainer.dev/attempt"


@pytest.mark.parametrize("kind", ["pods", "services", "networkpolicies"])
async def test_random_update_by_the_operator_changes_only_allowed_fields(
    control_plane: ControlPlane, api: Api, namespace: str, kind: str
) -> None:
    """The stored object may differ only in the attempt and the deadline of the pod."""
    async with strict_release(control_plane, namespace) as (operator, defaults):
        job = await api.apply_job(namespace, {**job_manifest(), "metadata": {"name": "digits"}})
        stored = await api.call("POST", path_of(kind, namespace), children_of(job, defaults)[kind])
        path = path_of(kind, namespace, stored["metadata"]["name"])
        mutations = [*named_mutations(kind, stored), *random_mutations(stored, MUTATIONS, SEED)]
        after = await asyncio.gather(*(_updated(operator, path, made) for _, made in mutations))
    wrong = [
        name
        for (name, _), found in zip(mutations, after, strict=True)
        if found is not None and _fixed(found, kind) != _fixed(stored, kind)
    ]
    assert not wrong, "\n".join(wrong)
    assert 5 < sum(found is not None for found in after) < len(mutations) / 2


async def _updated(api: Api, path: str, body: JSON) -> JSON | None:
    """Return the object that an update would store, or None if the API server refuses it."""
    try:
        return await api.call("PUT", path, body, STRICT)
    except RefusedError:
        return None


def _fixed(found: JSON, kind: str) -> JSON:
    """Return the parts of an object that the operator may not change."""
    found = copy.deepcopy(found)
    metadata, spec = found["metadata"], found["spec"]
    for key in _WITHOUT_POWER:
        metadata.pop(key, None)
    if kind == "pods":
        attempt = metadata["annotations"].pop(_ATTEMPT)
        metadata["annotations"]["valid"] = attempt == "stop" or attempt.isdigit()
        found["spec"]["ends"] = spec.pop("activeDeadlineSeconds", 1) == 1
    return {"metadata": metadata, "spec": spec}
