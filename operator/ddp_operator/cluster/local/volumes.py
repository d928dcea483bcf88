"""Provide the volumes of local worker pods: ConfigMaps from the job's file, written as folders."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_operator.cluster.local.paths import inside

ConfigMaps = Mapping[str, Mapping[str, str]]
"""ConfigMaps by name. Each maps file names to texts."""


_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def check_volumes(manifest: Manifest, config_maps: ConfigMaps) -> None:
    """Check that all volumes in the job are ConfigMaps from the job's file.

    As in a cluster, no key and no subPath may lead out of the volume.

    Raises:
        ClusterError: A volume needs a cluster, or leads out of its folder.
    """
    for volume in _user_volumes(manifest):
        name, source = volume["name"], volume.get("configMap")
        if source is None or not source.keys() <= {"name", "items"}:
            raise ClusterError(f"spec.volumes: {name} needs a cluster")
        if source["name"] not in config_maps:
            raise ClusterError(
                f"spec.volumes: {name} needs a cluster, or the ConfigMap {source['name']} in the"
                " same file"
            )
        for item in source.get("items") or []:
            if item.get("key") not in config_maps[source["name"]]:
                raise ClusterError(
                    f"spec.volumes: {name} needs the key {item.get('key')!r}, which the ConfigMap"
                    f" {source['name']} does not have"
                )
            inside(Path(), str(item.get("path")), f"spec.volumes: a path of {name}")
        for key in config_maps[source["name"]]:
            if not _KEY.fullmatch(key) or key.startswith("..") or key == ".":
                raise ClusterError(
                    f"ConfigMap {source['name']}: the key {key!r} must consist of letters, digits,"
                    " '-', '_' and '.', and not begin with '..'"
                )
    _local_paths(manifest, Path())


def write_volumes(manifest: Manifest, config_maps: ConfigMaps, home: Path) -> dict[str, Path]:
    """Write the ConfigMaps that a pod mounts as folders below `home`.

    Returns:
        Local path of each mount path in the container.
    """
    sources, mounts = _sources(manifest), _local_paths(manifest, home)
    for name, source in sources.items():
        for path, text in _files(source, config_maps).items():
            file = inside(home, f"{name}/{path}", "spec.volumes")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return mounts


def _files(source: Mapping[str, Any], config_maps: ConfigMaps) -> dict[str, str]:
    """Return the text of each file of a volume, by its path."""
    texts = config_maps[source["name"]]
    items = source.get("items")
    if items is None:
        return dict(texts)
    return {item["path"]: texts[item["key"]] for item in items}


def _sources(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the sources of the ConfigMaps that the worker container mounts, by volume."""
    mounted = {mount["name"] for mount in _mounts(manifest)}
    volumes = {v["name"]: v["configMap"] for v in _user_volumes(manifest)}
    return {name: source for name, source in volumes.items() if name in mounted}


def _local_paths(manifest: Manifest, home: Path) -> dict[str, Path]:
    """Return the local path for each mount path in the container.

    Raises:
        ClusterError: A name leads out of the folder.
    """
    sources, paths = _sources(manifest), {}
    for name in sources:
        inside(home, name, "spec.volumes")
    for mount in _mounts(manifest):
        name, part = mount["name"], mount.get("subPath") or ""
        folder = inside(home, name, f"spec.volumeMounts: the name {name!r}")
        local = inside(folder, part, f"spec.volumeMounts: the subPath of {name}")
        if name in sources:
            paths[mount["mountPath"]] = local
    return paths


def _mounts(manifest: Manifest) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = manifest["spec"]["containers"][0]["volumeMounts"]
    return mounts


def with_local_paths(value: str, paths: Mapping[str, Path]) -> str:
    """Return a value in which all container paths are replaced by local paths."""
    for path, local in paths.items():
        pattern = rf"(?<![\w./-]){re.escape(path.rstrip('/'))}(?![\w.-])"
        value = re.sub(pattern, str(local).replace("\\", r"\\"), value)
    return value


def _user_volumes(manifest: Manifest) -> list[dict[str, Any]]:
    return [v for v in manifest["spec"]["volumes"] if not v["name"].startswith("ddp-")]
