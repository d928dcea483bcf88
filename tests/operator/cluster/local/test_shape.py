"""Tests of wrong types in fields of the worker pod that a local run reads."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.builders.pod import build_pod
from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.local.cluster import LocalCluster, check_runs_locally
from tests.operator.builders.test_overlay import PLACES, WRONG
from tests.operator.support import DEFAULTS, new_job

CONFIG_MAPS = {"code": {"a.py": "A = 1"}}


def overlaid(overlay: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return build_pod(new_job(podTemplate={"spec": overlay}, **spec), 0, 1, DEFAULTS)


def check(overlay: dict[str, Any], **spec: Any) -> None:
    check_runs_locally(overlaid(overlay, **spec), CONFIG_MAPS)


def volume(**fields: Any) -> dict[str, Any]:
    return {"volumes": [fields]}


def worker(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **fields}]}


READ_LOCALLY: dict[str, Callable[[Any], dict[str, Any]]] = {
    "volumes": lambda value: {"volumes": value},
    "volume name": lambda value: volume(name=value, configMap={"name": "code"}),
    "configMap": lambda value: volume(name="code", configMap=value),
    "configMap name": lambda value: volume(name="code", configMap={"name": value}),
    "claim": lambda value: volume(name="ddp-checkpoint", persistentVolumeClaim=value),
    "claimName": lambda value: volume(
        name="ddp-checkpoint", persistentVolumeClaim={"claimName": value}
    ),
    "second claim": lambda value: volume(
        name="ddp-checkpoint", mountPath="/x", persistentVolumeClaim=value
    ),
    "command": lambda value: worker(command=value),
    "env value": lambda value: worker(env=[{"name": "A", "value": value}]),
    "env name": lambda value: worker(env=[{"name": value, "value": "a"}]),
    "volumeMounts": lambda value: worker(volumeMounts=value),
    "mount name": lambda value: worker(volumeMounts=[{"name": value, "mountPath": "/code"}]),
    "mountPath": lambda value: worker(volumeMounts=[{"name": "code", "mountPath": value}]),
    "subPath": lambda value: worker(
        volumeMounts=[{"name": "code", "mountPath": "/code", "subPath": value}]
    ),
}
"""Fields of the overlay that only a run without a cluster reads."""


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"containers": 5}, "containers: input should be a valid list, got 5"),
        (
            {"containers": [{"name": "worker", "env": [{"name": "A", "value": 5}]}]},
            r"containers.0.env.\d+.value: input should be a valid string, got 5",
        ),
        (worker(env=[{"name": "A=B", "value": "x"}]), r"containers.0.env.\d+.name: .*, got 'A=B'"),
        ({"terminationGracePeriodSeconds": "soon"}, "terminationGracePeriodSeconds: input should"),
        (
            volume(name="ddp-checkpoint", persistentVolumeClaim={"claimName": 5}),
            r"volumes.\d+.persistentVolumeClaim.claimName: input should be a valid string, got 5",
        ),
        (
            volume(name="ddp-checkpoint", persistentVolumeClaim=None),
            "volumes: ddp-checkpoint must be a persistentVolumeClaim",
        ),
    ],
    ids=["containers", "env", "name of a variable", "grace", "claim", "no claim"],
)
def test_spec_field_of_a_wrong_type_is_refused_in_one_sentence(
    overlay: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ClusterError, match=f"^the worker pod's spec.{sentence}"):
        check(overlay, checkpoint={"claimName": "shared"})


def test_config_map_without_a_name_is_refused() -> None:
    volume = {"name": "code", "configMap": {"nam": "code"}}
    with pytest.raises(ClusterError, match=r"volumes\.3\.configMap\.name: field required"):
        check({}, volumes=[volume])


@pytest.mark.parametrize("saves", [True, False], ids=["with a claim", "without"])
async def test_any_value_in_the_overlay_is_accepted_or_refused_in_one_sentence(
    tmp_path: Path, saves: bool
) -> None:
    cluster = LocalCluster(tmp_path, print, print, print, CONFIG_MAPS)
    spec = {"checkpoint": {"claimName": "shared"}} if saves else {}
    try:
        for place in [*PLACES, *READ_LOCALLY.values()]:
            for value in [*WRONG, 1.5, "a=b", "a\0b"]:
                manifest = overlaid(place(value), **spec)
                manifest["metadata"]["uid"] = "u"
                with contextlib.suppress(ClusterError):
                    pod = cluster._make_pod(manifest)
                    # The system refuses to start a program with another variable.
                    for name, text in pod._environment.items():
                        assert name
                        assert "=" not in name
                        assert "\0" not in name + text
    finally:
        await cluster.close()


async def test_overlay_fields_for_clusters_only_change_no_local_pod(tmp_path: Path) -> None:
    sidecar = {"name": "sync", "image": "sync:1", "volumeMounts": None, "env": [{"name": "A"}]}
    overlay = {"containers": [sidecar], "tolerations": [{"key": "gpu"}], "runtimeClassName": "n"}
    check(overlay)
    cluster = LocalCluster(tmp_path, print, print, print, CONFIG_MAPS)
    found = []
    try:
        for one in (overlay, {}):
            manifest = overlaid(one)
            manifest["metadata"]["uid"] = "u"
            found.append(cluster._make_pod(manifest)._environment)
    finally:
        await cluster.close()
    assert found[0] == found[1]
