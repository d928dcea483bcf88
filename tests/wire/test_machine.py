"""CPU quotas and memory events of both cgroup versions, and the OOM score."""

import os
from pathlib import Path

import pytest

from ddp_wire import machine
from ddp_wire.machine import (
    cpu_count,
    memory_bytes,
    memory_limit,
    out_of_memory_kills,
    prefer_for_oom_kill,
    threads_per_rank,
    throttled_seconds,
)

CORES = 16


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))


def test_memory_in_use_excludes_inactive_page_cache(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("700\n")
    (tmp_path / "memory" / "memory.stat").write_text("total_inactive_file 200\n")
    assert memory_bytes(tmp_path) == 500
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("inactive_file 300\nfile 400\n")
    assert memory_bytes(tmp_path) == 600


def test_memory_limit_is_read_with_its_file(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    old, new = tmp_path / "memory" / "memory.limit_in_bytes", tmp_path / "memory.max"
    old.parent.mkdir()
    old.write_text("9223372036854771712\n")
    assert memory_limit(tmp_path) is None
    old.write_text("167772160\n")
    assert memory_limit(tmp_path) == (160 << 20, old)
    new.write_text("max\n")
    assert memory_limit(tmp_path) == (160 << 20, old)
    new.write_text("1048576\n")
    assert memory_limit(tmp_path) == (1 << 20, new)


def v2(home: Path, text: str) -> Path:
    (home / "cpu.max").write_text(text)
    return home


def v1(home: Path, quota: str, period: str) -> Path:
    (home / "cpu").mkdir()
    (home / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (home / "cpu" / "cpu.cfs_period_us").write_text(period)
    return home


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("400000 100000\n", 4),
        ("150000 100000\n", 1),
        ("50000 100000\n", 1),
        ("6400000 100000\n", CORES),
        ("max 100000\n", CORES),
        ("", CORES),
        ("many 100000", CORES),
    ],
    ids=["4", "1.5", "half", "more than cores", "no quota", "empty", "nonsense"],
)
def test_cpu_count_follows_the_quota_of_cgroup_v2(tmp_path: Path, text: str, cpus: int) -> None:
    assert cpu_count(v2(tmp_path, text)) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [("200000", "100000", 2), ("-1", "100000", CORES), ("", "100000", CORES)],
    ids=["2", "no quota", "empty"],
)
def test_cpu_count_follows_the_quota_of_cgroup_v1(
    tmp_path: Path, quota: str, period: str, cpus: int
) -> None:
    assert cpu_count(v1(tmp_path, quota, period)) == cpus


def test_cpu_count_without_cgroups_is_the_number_of_cores(tmp_path: Path) -> None:
    assert cpu_count(tmp_path) == CORES


def test_cpu_count_follows_an_affinity_below_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cpu_count(v2(tmp_path, "400000 100000")) == 1


def test_cpu_count_without_affinity_is_the_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert machine.cpu_count(tmp_path) == 5


@pytest.mark.parametrize(("cpus", "ranks", "threads"), [(8, 2, 4), (8, 3, 2), (4, 8, 1), (1, 1, 1)])
def test_threads_of_all_ranks_together_fit_the_cpu_count(
    cpus: int, ranks: int, threads: int
) -> None:
    assert threads_per_rank(cpus, ranks) == threads


@pytest.mark.parametrize(
    ("file", "text", "kills"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 2\n", 2),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("memory.events", "nonsense", 0),
        ("cpu.max", "max 100000", 0),
    ],
    ids=["version 2", "version 1", "unreadable", "no limit"],
)
def test_processes_that_the_kernel_killed_for_lack_of_memory_are_counted(
    tmp_path: Path, file: str, text: str, kills: int
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert out_of_memory_kills(tmp_path) == kills


@pytest.mark.parametrize(("given", "raised"), [(-997, -697), (0, 300), (968, 1000)])
def test_rank_raises_its_oom_score(tmp_path: Path, given: int, raised: int) -> None:
    (tmp_path / "oom_score_adj").write_text(f"{given}\n")
    prefer_for_oom_kill(tmp_path)
    assert int((tmp_path / "oom_score_adj").read_text()) == raised


def test_missing_oom_score_file_is_ignored(tmp_path: Path) -> None:
    prefer_for_oom_kill(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "text", "seconds"),
    [
        ("cpu.stat", "usage_usec 9000000\nthrottled_usec 2500000\n", 2.5),
        ("cpu/cpu.stat", "nr_throttled 3\nthrottled_time 1500000000\n", 1.5),
        ("cpu.stat", "usage_usec 9000000\n", 0.0),
        ("cpu.stat", "nonsense", 0.0),
        ("elsewhere", "", 0.0),
    ],
    ids=["v2", "v1", "no quota", "nonsense", "none"],
)
def test_throttled_seconds_are_read_from_both_cgroup_versions(
    tmp_path: Path, file: str, text: str, seconds: float
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert throttled_seconds(tmp_path) == pytest.approx(seconds)
