"""The admission policy limits the ConfigMaps of the operator to the lists of finished jobs."""

import asyncio
from typing import Any

import pytest

from ddp_operator.api.finished import CONFIG_MAP, LABELS
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.mutations import changed
from tests.api.test_operator_policy import CORE, OTHER_OBJECTS, powerful, refusal

pytestmark = pytest.mark.api

JSON = dict[str, Any]
ONLY_ENTRIES = "may change only the entries in the list of finished jobs"


async def test_policy_lets_the_operator_write_only_the_list_of_finished_jobs(
    control_plane: ControlPlane, namespace: str
) -> None:
    await asyncio.to_thread(control_plane.wait_until_limited)
    async with powerful(control_plane, OPERATOR) as operator:
        maps = f"{CORE}/{namespace}/configmaps"
        mine: JSON = {
            "metadata": {"name": CONFIG_MAP, "labels": dict(LABELS)},
            "data": {"uid": "{}"},
        }
        assert OTHER_OBJECTS in await refusal(
            operator, "POST", maps, changed(mine, ("metadata", "name"), "other")
        )
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
        for path, value in (
            (("metadata", "ownerReferences"), [owner]),
            (("metadata", "finalizers"), ["a.example/b"]),
            (("binaryData",), {"other": "AA=="}),
            (("immutable",), True),
        ):
            assert ONLY_ENTRIES in await refusal(operator, "POST", maps, changed(mine, path, value))
        await operator.call("POST", maps, mine)
        stored = f"{maps}/{CONFIG_MAP}"
        assert (
            await refusal(operator, "PATCH", stored, {"data": {"uid": None, "other": "{}"}}) == ""
        )
        label = {"metadata": {"labels": {"a": "b"}}}
        assert ONLY_ENTRIES in await refusal(operator, "PATCH", stored, label)
        assert OTHER_OBJECTS in await refusal(operator, "DELETE", stored)
