"""Limit of open files."""

import resource
from collections.abc import Iterator

import pytest

from ddp_wire.processes import describe_open_files, open_file_limit, raise_open_file_limit


@pytest.fixture
def hard() -> Iterator[int]:
    """Hard limit of this process, whose soft limit is low during the test."""
    soft, found = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, found))
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, found))


def test_case_116_soft_limit_of_open_files_is_raised_but_not_without_bound(
    hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_open_files().startswith("the limit is 256 open files")
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 300)
    raise_open_file_limit()
    assert open_file_limit() == 300
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 1 << 20)
    raise_open_file_limit()
    expected = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    assert open_file_limit() == expected
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 300)
    raise_open_file_limit()
    assert open_file_limit() == expected, "it is never lowered"
