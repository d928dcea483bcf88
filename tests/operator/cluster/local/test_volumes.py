"""Local volumes from the ConfigMaps in the job's own file."""

from pathlib import Path
from typing import Any

import pytest

from ddp_operator.builders.pod import build_pod
from ddp_operator.client.manifest import read_job_file
from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.local.cluster import check_runs_locally
from ddp_operator.cluster.local.volumes import check_volumes, with_local_paths, write_volumes
from tests.operator.support import DEFAULTS, new_job

CODE = {"code": {"a.py": "A = 1\n", "b.txt": "text"}}


def pod(volume: dict[str, Any], mount: dict[str, Any] | None = None) -> dict[str, Any]:
    mounts = [{"name": "ddp-tmp", "mountPath": "/tmp"}, {"name": "v", "mountPath": "/code"}]
    mounts[1] |= mount or {}
    volumes = [{"name": "ddp-tmp", "emptyDir": {}}, {"name": "v", **volume}]
    return {"spec": {"volumes": volumes, "containers": [{"volumeMounts": mounts}]}}


def test_config_map_becomes_a_folder(tmp_path: Path) -> None:
    manifest = pod({"configMap": {"name": "code"}})
    check_volumes(manifest, CODE)
    paths = write_volumes(manifest, CODE, tmp_path)
    assert paths == {"/code": tmp_path / "v"}
    assert {path.name: path.read_text() for path in (tmp_path / "v").iterdir()} == CODE["code"]


def test_single_file_of_a_config_map_is_mounted(tmp_path: Path) -> None:
    manifest = pod({"configMap": {"name": "code"}}, {"subPath": "b.txt"})
    assert write_volumes(manifest, CODE, tmp_path)["/code"].read_text() == "text"


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        ({"emptyDir": {}}, "spec.volumes: v needs a cluster"),
        ({"configMap": {"name": "code", "optional": True}}, "spec.volumes: v needs a cluster"),
        (
            {"configMap": {"name": "other"}},
            "spec.volumes: v needs a cluster, or the ConfigMap other in the same file",
        ),
    ],
)
def test_volumes_that_need_a_cluster_are_refused(volume: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterError) as caught:
        check_volumes(pod(volume), CODE)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("key", ["../../.profile", "..", ".", "/etc/x", "a b"])
def test_config_map_key_cannot_lead_out_of_the_folder(key: str) -> None:
    manifest = pod({"configMap": {"name": "code"}})
    with pytest.raises(ClusterError, match=r"^ConfigMap code: the key .* must consist of letters"):
        check_volumes(manifest, {"code": {key: "text"}})


@pytest.mark.parametrize("path", ["../../.ssh", "a/../../b", "/etc"])
def test_sub_path_cannot_lead_out_of_the_folder(path: str) -> None:
    manifest = pod({"configMap": {"name": "code"}}, {"subPath": path})
    with pytest.raises(ClusterError, match=r"^spec.volumeMounts: the subPath of v: must be a rel"):
        check_volumes(manifest, CODE)


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x"])
def test_name_of_a_volume_cannot_lead_out_of_the_folder(name: str) -> None:
    manifest = pod({"configMap": {"name": "code"}}, {"name": name})
    manifest["spec"]["volumes"][1]["name"] = name
    with pytest.raises(ClusterError, match=r"^spec.volumes: must be a relative path without '..'"):
        check_volumes(manifest, CODE)


@pytest.mark.parametrize("claim", ["../../x", "/tmp/x"])
def test_name_of_a_claim_cannot_lead_out_of_the_folder(claim: str) -> None:
    manifest = build_pod(new_job(checkpoint={"claimName": "c", "path": "x"}), 0, 1, DEFAULTS)
    volumes = {volume["name"]: volume for volume in manifest["spec"]["volumes"]}
    volumes["ddp-checkpoint"]["persistentVolumeClaim"]["claimName"] = claim
    with pytest.raises(ClusterError, match=r"^spec.checkpoint.claimName: must be a relative path"):
        check_runs_locally(manifest, {})


@pytest.mark.parametrize(
    ("value", "local"),
    [
        ("/code", "/home/v"),
        ("/lib:/code/sub:/code", "/lib:/home/v/sub:/home/v"),
        ('{"data": "/code/a.csv"}', '{"data": "/home/v/a.csv"}'),
        ("/codec", "/codec"),
        ("/my/code", "/my/code"),
        ("code", "code"),
    ],
)
def test_mount_paths_in_environment_variables_become_local_paths(value: str, local: str) -> None:
    assert with_local_paths(value, {"/code": Path("/home/v")}) == local


def test_config_maps_are_read_from_the_file_of_the_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "kind: ConfigMap\nmetadata: {name: code}\ndata: {a.py: 'A = 1'}\n"
        "---\nkind: ConfigMap\nmetadata: {name: empty}\n---\nkind: DDPJob\n---\n- 1\n"
    )
    assert read_job_file(file).config_maps() == {"code": {"a.py": "A = 1"}, "empty": {}}
