"""Tests of the mirror: interruptions at each write, faults of the store, retention, claims."""

import errno
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint.remote import mirror as mirror_module
from ddp_trainer.checkpoint.remote.mirror import Mirror
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from tests.trainer.checkpoint.remote.memory import (
    ROOT,
    Clock,
    FaultyFileSystem,
    Killed,
    Run,
    content,
    mirror_of,
    name,
    object_store,
    restored,
)
from tests.trainer.checkpoint.remote.storm import Storm


def test_copy_is_equal_bit_for_bit(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    assert mirror_of(run, filesystem).turn() == mirror_module.POLL_SECONDS
    assert restored(filesystem, tmp_path / "other") == name(10)
    assert content(tmp_path / "other" / name(10)) == content(tmp_path / "run" / name(10))


class ResourceNotFoundError(Exception):
    """Error of Azure's client for a container that does not exist."""


class ClientAuthenticationError(Exception):
    """Error of Azure's client for wrong credentials."""


DETAILS = '\nRequestId:1\nContent: <?xml version="1.0"?>'


@pytest.mark.parametrize(
    ("error", "number", "sentence"),
    [
        (
            ResourceNotFoundError(f"The specified container does not exist.{DETAILS}"),
            errno.ENOENT,
            "ResourceNotFoundError: The specified container does not exist.",
        ),
        (
            ClientAuthenticationError(f"The key is wrong.{DETAILS}"),
            errno.EACCES,
            "ClientAuthenticationError: The key is wrong.",
        ),
        (FileNotFoundError("bucket/run"), errno.ENOENT, "there is no bucket/run"),
        (FileNotFoundError(2, "The bucket does not exist"), 2, "The bucket does not exist"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_of_a_client_library_is_one_sentence_that_is_not_tried_again(
    error: Exception, number: int, sentence: str
) -> None:
    filesystem, waits = FaultyFileSystem(), list[float]()

    def fault(*_: str) -> None:
        raise error

    filesystem.fault = fault
    with pytest.raises(OSError, match=re.escape(sentence)) as raised:
        object_store(filesystem, waits).read_small("x", 1)
    assert (raised.value.errno, raised.value.strerror) == (number, sentence)
    assert not waits


def killer(at: int, *, torn: bool) -> Callable[[str, str], None]:
    """Return a fault that kills at the given write. A torn write leaves a part of the object."""
    writes = itertools.count()

    def fault(request: str, path: str) -> None:
        if request in {"write", "delete"} and next(writes) == at:
            if torn and request == "write":
                filesystem = FAULTY[0]
                plain: Any = filesystem.__class__.__mro__[1]
                with plain._open(filesystem, path, "wb") as file:
                    file.write(b'{"fi')
            raise Killed

    return fault


FAULTY: list[FaultyFileSystem] = []


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_mirror_killed_at_any_write_never_shows_a_wrong_checkpoint(
    tmp_path: Path, torn: bool
) -> None:
    """Kill at each write and deletion, then look as another cluster does, then go on."""
    for at in itertools.count():
        home = tmp_path / f"{at}"
        run, filesystem = Run(home / "run"), FaultyFileSystem()
        FAULTY[:] = [filesystem]
        run.save(10)
        mirror_of(run, filesystem).turn()
        run.save(20)
        filesystem.fault = killer(at, torn=torn)
        killed = False
        try:
            mirror_of(run, filesystem).turn()
        except Killed:
            killed = True
        filesystem.fault = lambda *_: None
        found = restored(filesystem, home / "other")
        assert found in {name(10), name(20)}, at
        assert content(home / "other" / found) == content(home / "run" / found), at
        run.save(30)
        again = mirror_of(run, filesystem)
        again.turn()
        again.turn()
        assert again.status.step == 30, again.status
        assert object_store(filesystem).list() == [name(30)], at
        left = {path for path in filesystem.find(ROOT) if "/step-" in path}
        assert all(f"/{name(30)}/" in path for path in left), at
        if not killed:
            break
    assert at > 8, "each write of a turn was interrupted"


def test_errors_that_end_within_the_tries_are_invisible(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    seen: set[tuple[str, ...]] = set()

    def fault(*request: str) -> None:
        if request not in seen:
            seen.add(request)
            raise OSError(5, "500 Internal Server Error")

    filesystem.fault = fault
    mirror = mirror_of(run, filesystem)
    mirror.turn()
    assert (mirror.status.step, mirror.status.error) == (10, "")


def test_store_that_is_away_delays_the_mirror_and_is_reported(tmp_path: Path) -> None:
    run, filesystem, clock = Run(tmp_path / "run"), FaultyFileSystem(), Clock()
    source = DirectoryStore(run.directory)
    mirror = Mirror(source, object_store(filesystem), keep=1, clock=clock, sleep=lambda _: None)
    run.save(10)

    def away(*_: str) -> None:
        raise OSError(5, "503 Slow Down")

    filesystem.fault = away
    waits = [mirror.turn()]
    run.save(20)
    clock.now += 50
    waits += [mirror.turn() for _ in range(7)]
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    assert mirror.status.failures == 8
    assert mirror.status.error == "503 Slow Down"
    assert (mirror.status.behind_steps, mirror.status.behind_seconds) == (20, 50)
    assert not mirror.complete
    filesystem.fault = lambda *_: None
    mirror.turn()
    assert mirror.complete
    assert mirror.status.step == 20
    assert (mirror.status.behind_steps, mirror.status.behind_seconds) == (0, 0)
    assert object_store(filesystem).list() == [name(20)]


def test_retention_in_the_run_does_not_disturb_a_copy(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run", keep=1), FaultyFileSystem()
    run.save(10)
    before = content(run.directory / name(10))

    def save_meanwhile(request: str, path: str) -> None:
        if path.endswith("optimizer.safetensors") and request == "write":
            run.save(20)

    filesystem.fault = save_meanwhile
    mirror_of(run, filesystem).turn()
    assert not (run.directory / name(10)).exists()
    assert restored(filesystem, tmp_path / "other") == name(10)
    assert content(tmp_path / "other" / name(10)) == before


def test_damaged_checkpoint_is_not_copied_and_the_older_copy_stays(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror = mirror_of(run, filesystem)
    mirror.turn()
    run.save(20)
    path = run.directory / name(20) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    mirror.turn()
    assert mirror.status.error == "model.safetensors does not match its entry in MANIFEST.json"
    assert object_store(filesystem).list() == [name(10)]
    run.save(30)
    mirror.turn()
    assert object_store(filesystem).list() == [name(30)]


def test_newest_copies_are_kept_and_newer_ones_of_other_runs_stay(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    far = Run(tmp_path / "far", job="other")
    far.save(500)
    mirror_of(far, filesystem).turn()
    mirror = mirror_of(run, filesystem, keep=2)
    for step in (10, 20, 30, 40):
        run.save(step)
        mirror.turn()
    assert object_store(filesystem).list() == [name(30), name(40), name(500)]


def test_stale_list_neither_hides_the_newest_copy_nor_deletes_one(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    mirror = mirror_of(run, filesystem, keep=2)
    for step in (10, 20):
        run.save(step)
        mirror.turn()
    filesystem.hidden = {name(10), name(20)}
    assert restored(filesystem, tmp_path / "other") == name(20)
    run.save(30)
    mirror_of(run, filesystem, keep=2).turn()
    filesystem.hidden = set()
    assert object_store(filesystem).list() == [name(20), name(30)]


def test_list_with_a_deleted_checkpoint_does_not_bring_it_back(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror_of(run, filesystem).turn()
    filesystem.rm_file(f"{ROOT}/{name(10)}/MANIFEST.json")
    assert object_store(filesystem).list() == []
    assert restored(filesystem, tmp_path / "other") is None


def test_damaged_index_is_ignored(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    mirror_of(run, filesystem).turn()
    for text in ("", "{", "[]", '{"checkpoints": 3}', '{"checkpoints": ["../x"]}'):
        filesystem.pipe_file(f"{ROOT}/CHECKPOINTS.json", text.encode())
        assert object_store(filesystem).list() == [name(10)]


@pytest.mark.parametrize("newer", [("uid", 2), ("other", 0)])
def test_older_attempt_stops_when_another_one_owns_the_store(
    tmp_path: Path, newer: tuple[str, int]
) -> None:
    old, filesystem = Run(tmp_path / "old"), FaultyFileSystem()
    old.save(10)
    first = mirror_of(old, filesystem)
    first.turn()
    new = Run(tmp_path / "new", attempt=newer[1], job=newer[0])
    mirror_of(new, filesystem).turn()
    old.save(20)
    first.turn()
    assert first.status.ended
    assert "owns the store now" in first.status.error
    assert object_store(filesystem).list() == [name(10)]
    again = mirror_of(old, filesystem)
    again.turn()
    assert again.status.ended == (newer[0] == "uid")


def test_attempt_that_lost_the_store_while_it_copies_touches_nothing_of_the_owner(
    tmp_path: Path,
) -> None:
    """Both have a checkpoint of the same name, and the owner commits while the other one copies."""
    old, filesystem = Run(tmp_path / "old"), FaultyFileSystem()
    new = Run(tmp_path / "new", job="other")
    first = mirror_of(old, filesystem)
    first.turn()
    old.save(10)
    new.save(10)

    def take_over(request: str, path: str) -> None:
        if request == "write" and path.endswith("optimizer.safetensors"):
            filesystem.fault = lambda *_: None
            mirror_of(new, filesystem).turn()

    filesystem.fault = take_over
    first.turn()
    assert first.status.ended
    assert restored(filesystem, tmp_path / "other") == name(10)
    assert content(tmp_path / "other" / name(10)) == content(new.directory / name(10))


def test_copy_that_failed_is_deleted_after_the_next_one(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)

    def refuse(request: str, path: str) -> None:
        if request == "write" and path.endswith("state.json"):
            raise OSError(5, "500")

    filesystem.fault = refuse
    mirror = mirror_of(run, filesystem)
    mirror.turn()
    assert mirror.status.failures == 1
    assert object_store(filesystem).unfinished() == {name(10)}
    filesystem.fault = lambda *_: None
    run.save(20)
    mirror.turn()
    assert object_store(filesystem).unfinished() == set()
    assert object_store(filesystem).list() == [name(20)]


def test_attempt_that_lost_the_directory_stops(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    mirror = mirror_of(run, filesystem)
    mirror.turn()
    run.save(10)
    Run(tmp_path / "run", attempt=2)
    mirror.turn()
    assert mirror.status.ended
    assert object_store(filesystem).list() == []


def test_other_checkpoint_of_the_same_name_stays(tmp_path: Path) -> None:
    run, filesystem = Run(tmp_path / "run"), FaultyFileSystem()
    run.save(10)
    manifest = f"{ROOT}/{name(10)}/MANIFEST.json"
    filesystem.pipe_file(manifest, b'{"files": {}}')
    mirror = mirror_of(run, filesystem)
    mirror.turn()
    assert mirror.status.error == f"the store has another checkpoint named {name(10)}"
    assert filesystem.cat_file(manifest) == b'{"files": {}}'


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_cause_no_silent_bad_load(tmp_path: Path, seed: int) -> None:
    """A sample of `python -m tests.trainer.checkpoint.remote.storm`."""
    Storm(seed, tmp_path).rage()
