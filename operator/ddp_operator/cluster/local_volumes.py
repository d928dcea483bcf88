"""Local volumes of worker pods: ConfigMaps from the job's own file, as folders."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_operator.cluster.base import ClusterError, Manifest

ConfigMaps = Mapping[str, Mapping[str, str]]
"""Text by file name, by ConfigMap name."""


def check_volumes(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Check that the volumes that the user set are ConfigMaps from the same file.

    Raises:
        ClusterError: A volume needs a cluster.
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
