"""The sandbox image: one static program, packed as an OCI archive without any image tool."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import time
from pathlib import Path
from typing import Any, Final

from tests.harness import debian, paths
from tests.harness.locks import building
from tests.harness.run import Figures, command

IMAGE: Final = "localhost/pause:1"
_SOURCE: Final = paths.TOOLS_MODULES / "pause.c"
_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"


def archive(figures: Figures) -> Path:
    """Compile and pack the sandbox image unless the cache has it; return the archive.

    Raises:
        HarnessError: The compiler is missing or failed.
    """
    key = hashlib.sha256(_SOURCE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    target = paths.cache() / "images" / f"pause-{key}.tar"
    if target.is_file():
        return target
    with building(target.parent / "pause.lock", "the sandbox image"):
        start = time.monotonic()
        debian.ensure(debian.BUILD_PACKAGES)
        binary = target.with_suffix(".bin")
        command(["gcc", "-static", "-Os", "-s", "-o", binary, _SOURCE], "Compiling pause.c")
        fresh = target.with_suffix(".part")
        fresh.write_bytes(_pack(binary.read_bytes()))
        binary.unlink()
        fresh.rename(target)
        figures.note("build pause", time.monotonic() - start)
    return target


def _pack(program: bytes) -> bytes:
    layer = _tar({"pause": program}, mode=0o755)
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, config),
            "layers": [_descriptor(_LAYER_TYPE, layer)],
        }
    )
    entry = _descriptor(_MANIFEST_TYPE, manifest)
    entry["annotations"] = {"io.containerd.image.name": IMAGE}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    for blob in (layer, config, manifest):
        files[f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"] = blob
    return _tar(files, mode=0o644)


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
