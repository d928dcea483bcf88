"""A real Prometheus on this machine that scrapes the cluster by the product's own configuration."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.cluster.pod_discovery import targets_of
from tests.cluster.scrape_config import Discovery, configuration
from tests.harness import binaries
from tests.harness.cluster import Cluster
from tests.harness.errors import HarnessError
from tests.harness.ports import free_port
from tests.harness.run import poll, tail

_DISCOVERY_S = 1.0
_START_LIMIT_S = 30.0
_END_LIMIT_S = 10.0


class Prometheus:
    """Prometheus as a process. The context manager starts it and always kills it at the end."""

    def __init__(self, cluster: Cluster, discovery: Discovery = Discovery.FILE) -> None:
        """Prepare a Prometheus for the pods of a cluster."""
        self._cluster, self.discovery = cluster, discovery
        self._folder = tempfile.TemporaryDirectory(prefix="ddp-prometheus-")
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = Path(self._folder.name, "prometheus.log")
        self._targets = Path(self._folder.name, "targets.json")
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._discover_forever, daemon=True)

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        settings = folder / "prometheus.yml"
        document = configuration(self.discovery, self._targets, self._cluster.kubeconfig)
        settings.write_text(yaml.safe_dump(document), encoding="utf-8")
        from_file = self.discovery is Discovery.FILE
        tools = binaries.prometheus() if from_file else binaries.prometheus_3()
        command = [
            tools.binary("prometheus"),
            f"--config.file={settings}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        with self._log.open("wb") as log:
            # The kernel kills it when this process dies.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log
            )
        if from_file:
            self._writer.start()
        if not poll(self._is_ready, deadline_s=_START_LIMIT_S):
            raise HarnessError(f"Prometheus is not ready: {self._last_lines()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._writer.is_alive():
            self._writer.join(_END_LIMIT_S)
        self._process.kill()
        self._process.wait(_END_LIMIT_S)
        self._folder.cleanup()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: series with `metric` and `value`.

        Raises:
            HarnessError: Prometheus refused the query.
        """
        answer = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def targets(self) -> list[dict[str, Any]]:
        """Return the active targets, with `labels`, `health` and `lastError`."""
        found: list[dict[str, Any]] = self._get("/api/v1/targets?state=active")["data"][
            "activeTargets"
        ]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the product's rules and alerts, with `name`, `health` and `lastError`."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _discover_forever(self) -> None:
        """Write the pods of the cluster into the file of targets, again and again."""
        while not self._ended.is_set():
            found = self._cluster.kubectl("get", "pods", "-A", "-o", "json", check=False)
            if found.returncode == 0:
                fresh = self._targets.with_suffix(".fresh")
                fresh.write_text(json.dumps(targets_of(json.loads(found.stdout)["items"])))
                fresh.rename(self._targets)
            self._ended.wait(_DISCOVERY_S)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise HarnessError(f"Prometheus ended: {self._last_lines()}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):  # noqa: S310
                return True
        except OSError:
            return False

    def _last_lines(self) -> str:
        return tail(self._log.read_text(encoding="utf-8"))

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            raise HarnessError(f"Prometheus refused {path}: {error.read().decode()}") from error
        return answer
