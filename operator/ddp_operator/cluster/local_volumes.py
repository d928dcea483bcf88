"""Local volumes of worker pods: ConfigMaps from the job's own file, as folders."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ddp_operator.cluster.base import ClusterError, Manifest

ConfigMaps = Mapping[str, Mapping[str, str]]
"""Text by file name, by ConfigMap name."""


_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def check_volumes(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Check that the volumes that the user set are ConfigMaps from the same file.

    As in a cluster, no key and no subPath may lead out of the volume.

    Raises:
        ClusterError: A volume needs a cluster, or leads out of its folder.
    """
    for volume in _user_volumes(manifest):
        name, source = volume["name"], volume.get("configMap")
        if source is None or source.keys() != {"name"}:
            raise ClusterError(f"spec.volumes: {name} needs a cluster")
        if source["name"] not in config_maps:
            raise ClusterError(
                f"spec.volumes: {name} needs a cluster, or the ConfigMap {source['name']} in the"
                " same file"
            )
        for key in config_maps[source["name"]]:
            if not _KEY.fullmatch(key) or key.startswith("..") or key == ".":
                raise ClusterError(
                    f"ConfigMap {source['name']}: the key {key!r} must consist of letters, digits,"
                    " '-', '_' and '.', and not begin with '..'"
                )
    for mount in manifest["spec"]["containers"][0]["volumeMounts"]:
        path = PurePosixPath(mount.get("subPath", ""))
        if path.is_absolute() or ".." in path.parts:
            raise ClusterError(
                f"spec.volumeMounts: the subPath of {mount['name']} must be a relative path without"
                f" '..', not {mount['subPath']!r}"
            )


def write_volumes(manifest: Manifest, config_maps: ConfigMaps, home: Path) -> dict[str, Path]:
    """Write the ConfigMaps that a pod mounts below `home`.

    Returns:
        Local path of each mount path in the container.
    """
    sources = {v["name"]: v["configMap"]["name"] for v in _user_volumes(manifest)}
    paths = {}
    for mount in manifest["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] in sources:
            folder = home / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in config_maps[sources[mount["name"]]].items():
                (folder / name).write_text(text, encoding="utf-8")
            paths[mount["mountPath"]] = folder / mount.get("subPath", "")
    return paths


def with_local_paths(value: str, paths: Mapping[str, Path]) -> str:
    """Return a value with all container paths replaced by local paths."""
    for path, local in paths.items():
        pattern = rf"(?<![\w./-]){re.escape(path.rstrip('/'))}(?![\w.-])"
        value = re.sub(pattern, str(local).replace("\\", r"\\"), value)
    return value


def _user_volumes(manifest: Manifest) -> list[dict[str, Any]]:
    return [v for v in manifest["spec"]["volumes"] if not v["name"].startswith("ddp-")]
