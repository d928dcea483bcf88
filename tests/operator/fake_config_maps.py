"""In-memory ConfigMaps, beside the objects of `FakeCluster`."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ddp_operator.cluster.base import Key, Manifest

Write = Callable[[str, Callable[[], None]], None]


class FakeConfigMaps:
    """In-memory implementation of `ConfigMaps`. All arguments and results are copied."""

    def __init__(self, write: Write) -> None:
        """Create a store without ConfigMaps. `write` records a write and lets it happen."""
        self._write = write
        self.stored: dict[Key, Manifest] = {}
        self.reads: list[Key] = []

    async def read_config_map(self, namespace: str, name: str) -> Manifest | None:
        self.reads.append((namespace, name))
        return copy.deepcopy(self.stored.get((namespace, name)))

    async def patch_config_map(
        self, namespace: str, name: str, labels: Mapping[str, str], patch: Mapping[str, Any]
    ) -> None:
        def effect() -> None:
            new: Manifest = {"metadata": {"labels": dict(labels)}, "data": {}}
            known = copy.deepcopy(self.stored.get((namespace, name), new))
            self.stored[namespace, name] = merged(known, patch)

        self._write(f"patch ConfigMap {name}", effect)


def merged(document: Manifest, patch: Mapping[str, Any]) -> Manifest:
    """Apply a merge patch (RFC 7386)."""
    out = {k: v for k, v in document.items() if k not in patch}
    for key, value in patch.items():
        if isinstance(value, dict):
            out[key] = merged(document.get(key) or {}, value)
        elif value is not None:
            out[key] = value
    return out
