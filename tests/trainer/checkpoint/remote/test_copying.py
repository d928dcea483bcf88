"""Tests of copies between stores: hostile manifests, sizes, space, rate, cut answers."""

import errno
import itertools
import json
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.format import BrokenCheckpointError
from ddp_trainer.checkpoint.remote import fetching
from ddp_trainer.checkpoint.remote.copying import RateLimit
from ddp_trainer.checkpoint.remote.fetching import fetch_newest
from tests.trainer.checkpoint.remote.memory import (
    ROOT,
    URL,
    Clock,
    FaultyFileSystem,
    Run,
    content,
    mirror_of,
    name,
    object_store,
    restored,
)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"files": {"../../etc/passwd": {"bytes": 1, "crc32": "0"}}}, "is not a file name"),
        ({"files": {"model": {"bytes": -1, "crc32": "0"}}}, "damaged"),
        ({"files": {"model": {"bytes": 10**15, "crc32": "0"}}}, "has 1 bytes, not"),
        ({"files": ["model"]}, "damaged"),
        ([], "damaged"),
    ],
)
def test_hostile_manifest_is_refused(tmp_path: Path, document: object, reason: str) -> None:
    filesystem = FaultyFileSystem()
    filesystem.pipe_file(f"{ROOT}/{name(10)}/MANIFEST.json", json.dumps(document).encode())
    filesystem.pipe_file(f"{ROOT}/{name(10)}/model", b"x")
    try:
        said = "; ".join(fetch_newest(object_store(filesystem), tmp_path, URL).skipped)
    except OSError as error:
        said = str(error)
    assert reason in said
    assert not list(tmp_path.iterdir())


def test_object_larger_than_its_entry_is_not_read_to_its_end(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror_of(run, filesystem).turn()
    filesystem.pipe_file(f"{ROOT}/{name(10)}/model.safetensors", bytes(64 << 20))
    sizes: list[int] = []

    def count(_: str, read: bytes) -> bytes:
        sizes.append(len(read))
        return read

    filesystem.cut = count
    other = tmp_path / "other"
    other.mkdir()
    fetched = fetch_newest(object_store(filesystem), other, URL)
    assert fetched.name is None
    assert "model.safetensors has 67108864 bytes, not" in fetched.skipped[0]
    assert sum(sizes) < 1 << 20
    assert not list(other.iterdir())


def test_checkpoint_that_does_not_fit_on_the_volume_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror_of(run, filesystem).turn()
    monkeypatch.setattr(fetching, "_RESERVE_BYTES", 1 << 60)
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="MiB free") as caught:
        fetch_newest(object_store(filesystem), tmp_path / "other", URL)
    assert caught.value.errno == errno.ENOSPC
    assert not list((tmp_path / "other").iterdir())


def test_rate_limit_spreads_bytes_over_time() -> None:
    clock, waits = Clock(), list[float]()
    limit = RateLimit(1000, clock, waits.append)
    for _ in range(3):
        limit(500)
    assert waits == [0.5, 1.0, 1.5]
    clock.now += 100
    limit(500)
    assert waits[-1] == pytest.approx(0.5)
    RateLimit(None, clock, waits.append)(10**12)
    assert len(waits) == 4


def test_truncated_answers_are_read_again_and_never_accepted(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror_of(run, filesystem).turn()
    calls = itertools.count()
    filesystem.cut = lambda _, read: read[: len(read) // 2] if next(calls) % 3 == 1 else read
    assert restored(filesystem, tmp_path / "other") == name(10)
    assert content(tmp_path / "other" / name(10)) == content(run.directory / name(10))
    filesystem.cut = lambda _, read: read[: len(read) // 2]
    (tmp_path / "third").mkdir()
    with pytest.raises((OSError, BrokenCheckpointError)):
        fetch_newest(object_store(filesystem), tmp_path / "third", URL)
    assert not list((tmp_path / "third").iterdir())
