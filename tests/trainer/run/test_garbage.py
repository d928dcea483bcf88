"""Tests of garbage collection at fixed updates."""

import gc
from typing import Any

from ddp_trainer.run.garbage import Collector


def test_garbage_is_collected_only_at_the_configured_updates() -> None:
    collections: list[int] = []

    def record(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(info["generation"])

    gc.callbacks.append(record)
    try:
        with Collector(4) as collector:
            for step in range(1, 9):
                collector.after_update(step)
                heap: list[Any] = [[] for _ in range(10_000)]
                assert heap
            inside = list(collections)
    finally:
        gc.callbacks.remove(record)
    assert inside == [1, 1]
    assert gc.isenabled()
