"""The bill of materials of an image is a document of CycloneDX 1.6, whatever its packages say."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.release.cyclonedx import problem_of
from tools.release.oci_archive import OciArchive
from tools.release.sbom import bill_of_materials

SITE = "opt/ddp-trainer/lib/python3.11/site-packages"
METADATA = {
    "expression": "Name: a\nVersion: 1\nLicense-Expression: MIT OR Apache-2.0\n",
    "classifier": "Name: B_b\nVersion: 2+cpu\nClassifier: License :: OSI Approved :: MIT License\n",
    "text": "Name: c\nVersion: 3\nLicense: BSD, see the file\n",
    "none": "Name: d\nVersion: 4!1.0\n",
}
"""METADATA of packages, by the way in which they state their licence."""
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 1:2.36-9+deb12u10

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def image_of(folder: Path, files: dict[str, str]) -> OciArchive:
    """Write an OCI archive of an image with these files in one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, text in files.items():
            add(archive, name, text.encode())
    labels = {"title": "ddp-trainer operator", "version": "0.1.0"}
    config = {
        "created": "2026-01-01T00:00:00Z",
        "config": {"Labels": {f"org.opencontainers.image.{k}": v for k, v in labels.items()}},
    }
    digest = {name: f"sha256:{mark * 64}" for name, mark in zip("mcl", "123", strict=True)}
    manifest = {
        "config": {"digest": digest["c"]},
        "layers": [{"digest": digest["l"], "size": len(layer.getvalue())}],
    }
    index = {"manifests": [{"digest": digest["m"]}]}
    path = folder / "image.oci.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "index.json", json.dumps(index).encode())
        for name, document in (("m", manifest), ("c", config)):
            add(archive, f"blobs/{digest[name].replace(':', '/')}", json.dumps(document).encode())
        add(archive, f"blobs/{digest['l'].replace(':', '/')}", layer.getvalue())
    return OciArchive(path)


@pytest.fixture
def bill(tmp_path: Path) -> dict[str, Any]:
    files = {f"{SITE}/{name}.dist-info/METADATA": text for name, text in METADATA.items()}
    return bill_of_materials(image_of(tmp_path, {**files, "var/lib/dpkg/status": STATUS}))


def test_bill_of_materials_has_the_schema_of_cyclonedx(bill: dict[str, Any]) -> None:
    assert problem_of(bill) == ""
    purls = {component["purl"] for component in bill["components"]}
    assert purls == {
        "pkg:pypi/a@1",
        "pkg:pypi/b-b@2%2Bcpu",
        "pkg:pypi/c@3",
        "pkg:pypi/d@4%211.0",
        "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u10?arch=amd64",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("serialNumber", "1"),
        ("components", [{"type": "library"}]),
        ("metadata", {"timestamp": "yesterday"}),
        ("licence", "MIT"),
    ],
)
def test_schema_refuses_an_invalid_bill_of_materials(
    bill: dict[str, Any], key: str, value: object
) -> None:
    assert problem_of({**bill, key: value}) != ""
