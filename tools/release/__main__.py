"""`python -m tools.release`: build the images and the other files of a release.

The command writes the images and compares their sizes with the goals. With --all it also writes
bills of materials, the chart, install.yaml and SHA256SUMS.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.harness import binaries, images
from tests.harness.errors import HarnessError
from tests.harness.run import command, print_line
from tools import install_manifest
from tools.release.oci_archive import OciArchive
from tools.release.sbom import bill_of_materials
from tools.release.sizes import report

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
_PREFIX = "localhost/ddp-trainer-release"


@dataclass(frozen=True)
class Release:
    """A release: its version, commit and source URL."""

    version: str
    revision: str
    source: str

    @property
    def labels(self) -> dict[str, str]:
        """Build arguments that become labels of the images."""
        return {"VERSION": self.version, "REVISION": self.revision, "SOURCE": self.source}


def main() -> None:
    """Write the images, or all files of a release. Exit with 1 if an image exceeds its goal."""
    options = _options()
    release = Release(_version(), _revision(), options.source)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        written = _write_images(release, options.wheels)
        met = [_print_size(name, archive) for name, archive in written.items()]
        if options.all:
            _write_bills(written)
            _write_chart()
            _write_install_manifest(options.registry)
            _write_sums()
    except HarnessError as error:
        sys.exit(f"release: {error}")
    if not all(met):
        sys.exit("release: an image is larger than its goal")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with torch for CPUs")
    parser.add_argument("--source", default="unknown", help="address of the source, for the label")
    parser.add_argument(
        "--registry", default=install_manifest.REGISTRY, help="where install.yaml finds the images"
    )
    parser.add_argument("--all", action="store_true", help="write all files of a release")
    return parser.parse_args()


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _revision() -> str:
    """Return the commit, with `-dirty` if the working tree has changes."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    return command(describe, "Reading the commit", cwd=ROOT).strip()


def _write_images(release: Release, wheels: Path) -> dict[str, OciArchive]:
    """Build both images, and return their archives by file name."""
    cpu = any(wheels.glob("torch-*+cpu-*")) if wheels.is_dir() else False
    torch = "cpu" if cpu else "cuda"
    wanted: dict[str, tuple[str, dict[str, str], Path | None]] = {
        "operator": ("operator", {}, None),
        f"trainer-{torch}": ("trainer", {"TORCH": torch}, wheels if cpu else None),
    }
    written = {}
    for name, (target, arguments, mounted) in wanted.items():
        tag = f"{_PREFIX}/{target}:{release.version}"
        built = DIST / f"{name}.tar"
        # buildah would take labels from an earlier build, for any values of their arguments.
        images.build_again(target, tag, arguments | release.labels, mounted, archive=built)
        file = DIST / f"ddp-trainer-{name}-{release.version}.oci.tar"
        images.write_oci(built, tag, file)
        built.unlink()
        written[name] = OciArchive(file)
    return written


def _print_size(name: str, archive: OciArchive) -> bool:
    line, met = report(name, archive)
    print_line(line)
    print_line(f"{name}: {archive.digest}")
    return met


def _write_bills(written: dict[str, OciArchive]) -> None:
    for archive in written.values():
        file = archive.path.with_name(archive.path.name.replace(".oci.tar", ".cdx.json"))
        file.write_text(json.dumps(bill_of_materials(archive), indent=1) + "\n", encoding="utf-8")


def _write_chart() -> None:
    package = [binaries.helm(), "package", str(ROOT / "charts"), "--destination", str(DIST)]
    command(package, "Packaging the chart")


def _write_install_manifest(registry: str) -> None:
    text = install_manifest.build_install_manifest(registry)
    (DIST / install_manifest.NAME).write_text(text, encoding="utf-8")


def _write_sums() -> None:
    lines = []
    for file in sorted(DIST.iterdir()):
        with file.open("rb") as opened:
            lines.append(f"{hashlib.file_digest(opened, 'sha256').hexdigest()}  {file.name}\n")
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
