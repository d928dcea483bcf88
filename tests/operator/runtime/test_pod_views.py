"""Views of pods: computed once for each version."""

from typing import Any

import pytest

from ddp_operator.reconcile.pod_view import PodView, view_pod
from ddp_operator.runtime import pod_views
from ddp_operator.runtime.pod_views import PodViews


def manifest(index: int, version: int, phase: str = "Running") -> dict[str, Any]:
    metadata = {"name": f"digits-{index}", "uid": f"uid-{index}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def test_only_changed_pods_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counting(pod: dict[str, Any]) -> PodView:
        parsed.append(pod["metadata"]["name"])
        return view_pod(pod)

    monkeypatch.setattr(pod_views, "view_pod", counting)
    views = PodViews()
    assert len(views.of([manifest(0, 1), manifest(1, 2)])) == 2
    changed = views.of([manifest(0, 1), manifest(1, 3, "Failed")])
    assert [one.phase for one in changed] == ["Running", "Failed"]
    assert parsed == ["digits-0", "digits-1", "digits-1"]
    views.of([])
    views.of([manifest(0, 1)])
    assert parsed[-1] == "digits-0", "views of pods that are gone must not stay in memory"
