"""Writes the files that are generated from code, or with --check says which have drifted."""

import argparse
import sys
from pathlib import Path

from ddp_operator.api.crd import build_crd, to_yaml
from ddp_operator.api.reference import build_reference

ROOT = Path(__file__).parents[2]


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    crd = to_yaml(build_crd())
    return {
        ROOT / "manifests" / "crd" / "ddpjobs.yaml": crd,
        ROOT / "charts" / "files" / "crd.yaml": crd,
        ROOT / "docs" / "reference" / "api.md": build_reference(),
    }


def main() -> None:
    """Write or check all generated files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    drifted = []
    for path, content in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        drifted.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if check and drifted:
        sys.exit(f"drifted from the code, run `make generate`: {', '.join(drifted)}")
    print("generated files: " + (", ".join(drifted) + " written" if drifted else "no drift"))


if __name__ == "__main__":
    main()
