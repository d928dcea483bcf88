"""Tests of reading CPU steal from the kernel's counters."""

from pathlib import Path

import pytest

from bench.host import Host


def account(file: Path, *, user: int, idle: int, stolen: int) -> Path:
    file.write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    return file


def test_steal_fraction_is_relative_to_busy_time(tmp_path: Path) -> None:
    stat = account(tmp_path / "stat", user=100, idle=50, stolen=10)
    host = Host(stat)
    account(stat, user=130, idle=1050, stolen=20)
    assert host.steal_fraction() == pytest.approx(0.25)


def test_steal_fraction_of_an_idle_machine_is_zero(tmp_path: Path) -> None:
    stat = account(tmp_path / "stat", user=100, idle=50, stolen=10)
    host = Host(stat)
    account(stat, user=100, idle=99, stolen=10)
    assert host.steal_fraction() == 0.0
