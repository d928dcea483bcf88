"""Types of the parts of a worker pod that a run without a cluster reads."""

import contextlib
from typing import Any

import pytest

from ddp_operator.builders.pod import build_pod
from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.local import check_runs_locally
from tests.operator.builders.test_overlay import PLACES, WRONG
from tests.operator.support import DEFAULTS, new_job


def check(overlay: dict[str, Any], **spec: Any) -> None:
    pod = build_pod(new_job(podTemplate={"spec": overlay}, **spec), 0, 1, DEFAULTS)
    check_runs_locally(pod, {"code": {}})


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"containers": 5}, "containers: input should be a valid list, got 5"),
        (
            {"containers": [{"name": "worker", "env": [{"name": "A", "value": 5}]}]},
            r"containers.0.env.\d+.value: input should be a valid string, got 5",
        ),
        ({"terminationGracePeriodSeconds": "soon"}, "terminationGracePeriodSeconds: input should"),
    ],
    ids=["containers", "env", "grace"],
)
def test_wrong_type_is_refused_in_one_sentence(overlay: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterError, match=f"^the worker pod's spec.{sentence}"):
        check(overlay)


def test_config_map_without_a_name_is_refused() -> None:
    volume = {"name": "code", "configMap": {"nam": "code"}}
    with pytest.raises(ClusterError, match=r"volumes\.3\.configMap\.name: field required"):
        check({}, volumes=[volume])


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_no_value_of_the_overlay_raises_another_error(value: object) -> None:
    for place in PLACES:
        with contextlib.suppress(ClusterError):
            check(place(value))


def test_overlay_that_only_a_cluster_uses_is_accepted() -> None:
    sidecar = {"name": "sync", "image": "sync:1", "volumeMounts": None}
    check({"containers": [sidecar], "tolerations": [{"key": "gpu"}], "runtimeClassName": "nvidia"})
