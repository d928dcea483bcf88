"""Volumes of worker pods on this machine: ConfigMaps of the job's own file, as folders."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_operator.cluster.base import ClusterError, Manifest

ConfigMaps = Mapping[str, Mapping[str, str]]
"""Files by name, by the name of their ConfigMap."""


def refuse_volumes(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Checks that the volumes that a user stated can be had here.

    Raises:
        ClusterError: One is something that only a cluster has.
    """
    for volume in _stated(manifest):
        name, source = volume["name"], volume.get("configMap")
        if source is None or source.keys() != {"name"}:
            raise ClusterError(f"spec.volumes: {name} needs a cluster")
        if source["name"] not in config_maps:
            raise ClusterError(
                f"spec.volumes: {name} needs a cluster, or the ConfigMap {source['name']} in the"
                " same file"
            )


def place_volumes(manifest: Manifest, config_maps: ConfigMaps, home: Path) -> dict[str, Path]:
    """Writes the ConfigMaps that a pod mounts below `home`.

    Returns:
        What stands for each path in the container.
    """
    sources = {v["name"]: v["configMap"]["name"] for v in _stated(manifest)}
    found = {}
    for mount in manifest["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] in sources:
            folder = home / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in config_maps[sources[mount["name"]]].items():
                (folder / name).write_text(text, encoding="utf-8")
            found[mount["mountPath"]] = folder / mount.get("subPath", "")
    return found


def with_local_paths(value: str, places: Mapping[str, Path]) -> str:
    """A variable's value with the folders here in place of the paths in the container."""
    for path, folder in places.items():
        inside = re.escape(path.rstrip("/"))
        here = str(folder).replace("\\", r"\\")
        value = re.sub(rf"(?<![\w./-]){inside}(?![\w.-])", here, value)
    return value


def _stated(manifest: Manifest) -> list[dict[str, Any]]:
    return [v for v in manifest["spec"]["volumes"] if not v["name"].startswith("ddp-")]
