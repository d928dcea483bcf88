"""Write kubeconfig files."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tests.harness import paths
from tests.harness.pki import Authority, Pair


def write(file: Path, authority: Authority, client: Pair) -> Path:
    """Write a kubeconfig with embedded credentials; return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [
            {
                "name": "test",
                "cluster": {
                    "server": paths.API_URL,
                    "certificate-authority-data": _encoded(authority.pair.certificate),
                },
            }
        ],
        "users": [
            {
                "name": "test",
                "user": {
                    "client-certificate-data": _encoded(client.certificate),
                    "client-key-data": _encoded(client.key),
                },
            }
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
