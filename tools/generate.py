"""Write all generated files. With --check, name the files that differ from the code instead."""

import argparse
import json
import sys
from pathlib import Path

from ddp_operator.api.crd import build_crd, to_yaml
from ddp_operator.api.reference import build_reference
from tools.admission import build_pod_template_rules
from tools.dashboards.build import build_dashboards
from tools.dashboards.page import build_dashboards_page
from tools.limits_page import build_limits_page
from tools.metrics_page import build_metrics_page
from tools.operator_policy import build_operator_rules
from tools.reference.pages import build_pages
from tools.values_page import build_values_page

ROOT = Path(__file__).parents[1]


def generated() -> dict[Path, str]:
    """Return the content of every generated file, by path."""
    crd = to_yaml(build_crd())
    rules = (ROOT / "manifests" / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    dashboards = build_dashboards()
    return {
        ROOT / "manifests" / "crd" / "ddpjobs.yaml": crd,
        ROOT / "charts" / "files" / "crd.yaml": crd,
        ROOT / "charts" / "files" / "rules.yaml": rules,
        ROOT / "charts" / "files" / "pod-template-rules.yaml": build_pod_template_rules(),
        ROOT / "charts" / "files" / "operator-rules.yaml": build_operator_rules(),
        ROOT / "charts" / "README.md": build_values_page(),
        ROOT / "docs" / "reference" / "api.md": build_reference(),
        ROOT / "docs" / "reference" / "dashboards.md": build_dashboards_page(
            [json.loads(text) for text in dashboards.values()]
        ),
        ROOT / "docs" / "reference" / "limits.md": build_limits_page(),
        ROOT / "docs" / "reference" / "metrics.md": build_metrics_page(),
        **{ROOT / "charts" / "dashboards" / name: text for name, text in dashboards.items()},
        **{ROOT / "docs" / "reference" / name: text for name, text in build_pages().items()},
    }


def main() -> None:
    """Write or check all generated files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    outdated = []
    for path, content in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        outdated.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if check and outdated:
        sys.exit(f"generated files are out of date, run `make generate`: {', '.join(outdated)}")
    print("generated files: " + (", ".join(outdated) + " written" if outdated else "up to date"))


if __name__ == "__main__":
    main()
