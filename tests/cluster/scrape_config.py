"""Configurations of Prometheus: the product's own, with one of several discoveries of the pods."""

import re
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from tests.harness import paths

SCRAPE_FILE = paths.REPOSITORY / "manifests" / "prometheus" / "scrape.yaml"
RULES_FILE = SCRAPE_FILE.with_name("rules.yaml")
_INTERVAL = "1s"
"""Interval of scrapes and of rules in tests, in place of the configured one."""
_POD = "__meta_kubernetes_pod"
_ANNOTATION = f"{_POD}_annotation_prometheus_io"
JSON = dict[str, Any]


class Discovery(Enum):
    """Way in which Prometheus finds the pods."""

    FILE = "file"
    """Prometheus reads the pods from a file, because Debian's Prometheus 2 is built without
    discovery."""
    API = "api"
    """Prometheus 3 finds the pods by the API server, with the product's scrape configuration."""
    ANNOTATIONS = "annotations"
    """Prometheus 3 finds the pods by the API server, and selects those with
    `prometheus.io/scrape`."""


def configuration(discovery: Discovery, targets: Path, kubeconfig: Path) -> JSON:
    """Return the configuration of a Prometheus outside of the cluster.

    Args:
        discovery: How it finds the pods.
        targets: File of the pods for `Discovery.FILE`.
        kubeconfig: Access to the API server for the other discoveries.
    """
    found: JSON = yaml.safe_load(SCRAPE_FILE.read_text(encoding="utf-8"))
    if discovery is Discovery.ANNOTATIONS:
        found["scrape_configs"] = [_by_annotations()]
    found["global"] = {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL}
    found["rule_files"] = [str(RULES_FILE)]
    for job in found["scrape_configs"]:
        job.pop("scrape_interval", None)
        if discovery is Discovery.FILE:
            _read_targets(job, targets)
            continue
        for one in job["kubernetes_sd_configs"]:
            one["kubeconfig_file"] = str(kubeconfig)
    return found


def _by_annotations() -> JSON:
    """Return the job for pods in the configuration of the Prometheus community's Helm chart."""
    rules = [
        _rule([f"{_ANNOTATION}_scrape"], regex="true", action="keep"),
        _rule([f"{_ANNOTATION}_path"], target_label="__metrics_path__", regex="(.+)"),
        _rule(
            [f"{_ANNOTATION}_port", f"{_POD}_ip"],
            regex=r"(\d+);((([0-9]+?)(\.|$)){4})",
            replacement="$2:$1",
            target_label="__address__",
        ),
        {"action": "labelmap", "regex": f"{_POD}_label_(.+)"},
        _rule(["__meta_kubernetes_namespace"], target_label="namespace"),
        _rule([f"{_POD}_name"], target_label="pod"),
        _rule([f"{_POD}_phase"], regex="Pending|Succeeded|Failed|Completed", action="drop"),
        _rule([f"{_POD}_node_name"], target_label="node"),
    ]
    return {
        "job_name": "kubernetes-pods",
        "honor_labels": True,
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": rules,
    }


def _rule(source: list[str], **rest: str) -> JSON:
    return {"source_labels": source, **rest}


def _read_targets(job: JSON, targets: Path) -> None:
    """Replace the discovery of a scrape job by a file."""
    discoveries = job.pop("kubernetes_sd_configs")
    job["file_sd_configs"] = [{"files": [str(targets)]}]
    job["relabel_configs"] = [*_selecting(discoveries), *job["relabel_configs"]]


def _selecting(discoveries: list[JSON]) -> list[JSON]:
    """Return rules that keep the pods which a discovery selects by namespace and labels."""
    rules = []
    for discovery in discoveries:
        if names := discovery.get("namespaces", {}).get("names"):
            rules.append(
                _rule(["__meta_kubernetes_namespace"], regex="|".join(names), action="keep")
            )
        for selector in discovery.get("selectors", []):
            name, _, value = selector["label"].partition("=")
            label = re.sub("[^a-zA-Z0-9_]", "_", name)
            rules.append(_rule([f"{_POD}_label_{label}"], regex=value, action="keep"))
    return rules
