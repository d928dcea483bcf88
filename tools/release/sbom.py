"""Write the bill of materials of an image: its Python and Debian packages, as CycloneDX 1.6."""

import uuid
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from tools.release.oci_archive import OciArchive

_STATUS = "var/lib/dpkg/status"
_PYTHON = "*.dist-info/METADATA"


def bill_of_materials(image: OciArchive) -> dict[str, Any]:
    """Return the bill of materials. Equal images produce equal documents."""
    texts = image.texts(_PYTHON, _STATUS)
    config = image.config()
    labels = config["config"].get("Labels", {})
    python = [_python(PurePosixPath(p), t) for p, t in texts.items() if p != _STATUS]
    debian = list(_debian(texts.get(_STATUS, "")))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, image.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": config["created"],
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": labels["org.opencontainers.image.title"],
                "version": labels["org.opencontainers.image.version"],
                "hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}],
            },
        },
        "components": sorted(python + debian, key=lambda c: (c["purl"], c["bom-ref"])),
    }


def _python(path: PurePosixPath, metadata: str) -> dict[str, Any]:
    found = Parser().parsestr(metadata, headersonly=True)
    name, version = str(found["Name"]), str(found["Version"])
    purl = f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}"
    return {
        "type": "library",
        "bom-ref": f"{purl}#{path.parent}",
        "name": name,
        "version": version,
        "purl": purl,
        **_licences(found),
        "evidence": {"occurrences": [{"location": f"/{path.parent}"}]},
    }


def _licences(metadata: Message) -> dict[str, Any]:
    """Return the licence that a package states: an expression, or a name."""
    if expression := metadata["License-Expression"]:
        return {"licenses": [{"expression": str(expression)}]}
    classifiers = [str(text) for text in metadata.get_all("Classifier", [])]
    names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    if not names and (text := str(metadata["License"] or "").strip()) and "\n" not in text:
        names = [text]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _debian(status: str) -> Iterator[dict[str, Any]]:
    for paragraph in status.split("\n\n"):
        found = Parser().parsestr(paragraph, headersonly=True)
        if "installed" not in str(found["Status"]).split():
            continue
        name, version, machine = (str(found[key]) for key in ("Package", "Version", "Architecture"))
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={machine}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
        }
