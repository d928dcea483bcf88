"""Build charts/README.md: the installation of the chart, and all values with their defaults."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).parents[1] / "charts" / "values.yaml"
_TEXT = """\
# Chart of ddp-trainer

This page is generated from `values.yaml`. The chart installs the operator of ddp-trainer with its CRD, roles, admission policies, metrics
and dashboards. You need Kubernetes 1.30 or newer and Helm 3, and both images in a registry ([README](../README.md#on-a-cluster)).

```sh
helm install ddp-trainer charts/ --namespace ddp-system --create-namespace \\
  --set image.repository=registry.example/ddp-trainer/operator \\
  --set trainerImage.repository=registry.example/ddp-trainer/trainer
helm test ddp-trainer --namespace ddp-system --logs
helm upgrade ddp-trainer charts/ --namespace ddp-system --reset-then-reuse-values
helm uninstall ddp-trainer --namespace ddp-system
```

`helm uninstall` keeps the CRD and with it all jobs, unless `crds.keep` is false. [Installation](../docs/operate/install.md)
describes replicas and namespaces, [monitoring](../docs/operate/monitoring.md) the metrics, [rights](../docs/operate/rights.md) the rights,
[security](../docs/operate/security.md) the threats, and [upgrades](../docs/operate/upgrade.md) what an
upgrade changes.

## Values

`values.schema.json` rejects unknown names and values of the wrong type.

| value | default | meaning |
| --- | --- | --- |
"""  # noqa: E501
_KEY = re.compile(r"^( *)([A-Za-z]\w*):")


@dataclass(frozen=True)
class Value:
    """One value of the chart's values.yaml."""

    name: str
    """Path of the value, with dots."""
    default: Any
    text: str
    """Text of the comment that begins with `# --`."""


def read_values() -> list[Value]:
    """Return all values that have a comment, in the order of the file."""
    text = VALUES.read_text(encoding="utf-8")
    return list(_read(text, yaml.safe_load(text)))


def _read(text: str, defaults: dict[str, Any]) -> Iterator[Value]:
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and comment:
            comment.append(stripped.removeprefix("# "))
        elif key := _KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment:
                default: Any = defaults
                for name in path:
                    default = default[name]
                yield Value(".".join(path), default, " ".join(comment))
            comment = []


def build_values_page() -> str:
    """Return the page as Markdown."""
    rows = [
        f"| `{one.name}` | `{_default(one.default)}` | {one.text.replace('|', chr(92) + '|')} |\n"
        for one in read_values()
    ]
    return _TEXT + "".join(rows)


def _default(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
