"""Local runs on GPUs."""

from collections.abc import Mapping
from typing import Any

import pytest

from ddp_operator.cluster.local import share
from ddp_wire.variables import Env
from tests.harness.one_gpu import share_one_gpu


def on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all pods of local runs use the same GPU if the machine has only one."""
    own = share.share_of_pod

    def shared(pod: Mapping[str, str], *machine: Any) -> dict[str, str]:
        return own(pod, *machine) | share_one_gpu(f"node-{pod[Env.NODE_INDEX]}")

    monkeypatch.setattr(share, "share_of_pod", shared)
