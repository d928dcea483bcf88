"""Run kubectl and helm against the cluster, with separate caches."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness import paths
from tests.harness.errors import HarnessError
from tests.harness.run import tail


def run(
    program: str, arguments: Sequence[str], *, stdin: str | None, check: bool, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a client of the cluster as administrator.

    Args:
        program: The path of the client.
        arguments: Its arguments.
        stdin: Text for its standard input.
        check: Whether a failure raises an error.
        timeout_s: Seconds after which the client is killed.

    Raises:
        HarnessError: The client failed (with `check`), or ran too long.
    """
    argv = [program, *arguments]
    shown = " ".join([Path(program).name, *arguments])
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=timeout_s,
            env=os.environ | environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"`{shown}` took longer than {timeout_s:.0f} s.") from error
    if check and done.returncode != 0:
        output = tail(done.stderr or done.stdout)
        raise HarnessError(f"`{shown}` failed with exit code {done.returncode}:\n{output}")
    return done


def environment() -> dict[str, str]:
    """Return the clients' environment, with caches that do not outlive the cluster."""
    folder = paths.STATE / "clients"
    return {
        "KUBECONFIG": str(paths.STATE / "kubeconfig.yaml"),
        "KUBECACHEDIR": str(folder / "kubectl"),
        "HELM_CACHE_HOME": str(folder / "helm" / "cache"),
        "HELM_CONFIG_HOME": str(folder / "helm" / "config"),
        "HELM_DATA_HOME": str(folder / "helm" / "data"),
    }
