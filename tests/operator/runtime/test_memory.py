"""Tests of the operator's memory after the deletion of jobs, in a separate process."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from ddp_operator.builders.pod import build_pod
from ddp_operator.cluster.base import ClusterSnapshot, Listing, Manifest
from ddp_operator.cluster.kube.lists import list_decoder
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.memory import collect_garbage_less_often, release_memory
from tests.garbage import all_objects_listed
from tests.operator.support import DEFAULTS, active_job, pod_manifest

STATUS = Path("/proc/self/status")
PODS, PAGE = 4_000, 500
NO_LIST = Listing((), 1)


def resident_kilobytes() -> int:
    """Return the resident memory of this process."""
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def pages() -> Iterator[bytes]:
    """Yield the pages of a list of pods, each with different text and many unused fields."""
    job = active_job()
    pod, seen = build_pod(job, 1, 1, DEFAULTS), pod_manifest(job, 1)
    unused: Manifest = {f"f:{n}": {"f:a": {}, "f:b": {}} for n in range(50)}
    pod["metadata"] |= {**seen["metadata"], "uid": "@uid", "managedFields": [unused, unused]}
    text = json.dumps({**pod, "status": seen["status"]})
    for start in range(0, PODS, PAGE):
        items = ",".join(text.replace("@uid", f"uid-{n}") for n in range(start, start + PAGE))
        yield f'{{"items": [{items}]}}'.encode()


def relist(cache: Cache, version: int) -> None:
    """Replace the contents of a cache by a list, and release memory, as a resync does."""
    decode, items = list_decoder("Pod"), list[Manifest]()
    for page in pages():
        items += decode(page)["items"]
    for number, item in enumerate(items):
        item["metadata"] |= {"name": f"pod-{number}", "resourceVersion": f"{version}{number:04}"}
    cache.replace(ClusterSnapshot(NO_LIST, {"Pod": Listing(items, version * 10_000 + PODS)}))
    release_memory()


def measure() -> None:
    """Print the resident memory before jobs, with them, and after them, in kilobytes."""
    collect_garbage_less_often()
    cache = Cache()
    figures: list[Any] = [resident_kilobytes()]
    for version in (1, 2, 3):
        relist(cache, version)
    figures.append(resident_kilobytes())
    nothing = Listing((), 100_000)
    cache.replace(ClusterSnapshot(nothing, {"Pod": nothing}))
    release_memory()
    print(json.dumps([*figures, resident_kilobytes()]))


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells the resident memory")
def test_memory_is_returned_after_the_deletion_of_a_thousand_jobs() -> None:
    command = [sys.executable, "-m", "tests.operator.runtime.test_memory"]
    ended = subprocess.run(command, capture_output=True, check=True)
    before, full, after = json.loads(ended.stdout)
    assert full > 1.1 * before
    assert after <= 1.2 * before


def caches_of_yarl() -> dict[str, int]:
    """Return the number of entries of each cache that is not empty, by function name."""
    kind = type(lru_cache(str))
    with all_objects_listed():
        found = [each for each in gc.get_objects() if type(each) is kind]
    sizes = {f.__name__: f.cache_info().currsize for f in found if f.__module__.startswith("yarl")}
    return {name: size for name, size in sizes.items() if size}


def test_address_caches_of_yarl_are_emptied() -> None:
    for number in range(100):
        assert URL(f"http://10.0.0.{number}:8470/status").with_query("wait=5").raw_host
    assert min(caches_of_yarl().values()) >= 1
    assert len(caches_of_yarl()) >= 2
    release_memory()
    assert caches_of_yarl() == {}


if __name__ == "__main__":
    measure()
