"""Tests of a start with a mirror: which checkpoint is chosen, and that none is lost in silence."""

from pathlib import Path

import pytest

from ddp_trainer.checkpoint import load, mirrored
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.remote.fetching import Fetched, fetch_newest
from ddp_trainer.checkpoint.remote.mirror import Mirror
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.errors import InputError, VolumeError
from tests.trainer.checkpoint.remote.memory import (
    ROOT,
    URL,
    FaultyFileSystem,
    Run,
    content,
    name,
    object_store,
)
from tests.trainer.checkpoint.test_manager import saved


class Cluster:
    """A directory, and the mirror of a run in another cluster."""

    def __init__(self, home: Path, *mirrored_steps: int) -> None:
        self.directory = home / "here"
        self.directory.mkdir()
        self.filesystem = FaultyFileSystem()
        self.there = Run(home / "there")
        mirror = Mirror(DirectoryStore(self.there.directory), object_store(self.filesystem), keep=9)
        for step in mirrored_steps:
            self.there.save(step)
            mirror.turn()
        self.reads = 0

    def fetch(self, newer_than: CheckpointName | None) -> Fetched:
        self.reads += 1
        try:
            return fetch_newest(object_store(self.filesystem), self.directory, URL, newer_than)
        except OSError as error:
            raise VolumeError(str(error.strerror)) from error

    def choose(self, *, start_over: bool = False, is_new_here: bool = True) -> load.Choice:
        return mirrored.choose(
            self.directory,
            self.fetch,
            start_over=start_over,
            is_new_here=is_new_here,
            sleep=lambda _: None,
        )

    def fail(self) -> None:
        def away(*_: str) -> None:
            raise OSError(5, "the store is away")

        self.filesystem.fault = away

    def damage(self, step: int, attempt: int = 1) -> None:
        path = self.directory / f"step-{step:08d}.attempt-{attempt}" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def step_of(choice: load.Choice) -> int | None:
    return choice.name.step if choice.name else None


def test_empty_directory_resumes_from_the_mirror_bit_for_bit(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10, 20)
    choice = here.choose()
    assert step_of(choice) == 20
    assert choice.skipped == [
        f"checkpoint step-00000020.attempt-1 was copied from the mirror to {here.directory}"
    ]
    name = "step-00000020.attempt-1"
    assert content(here.directory / name) == content(here.there.directory / name)


def test_newer_checkpoint_of_either_place_wins(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10, 20)
    saved(here.directory, 15)
    assert step_of(here.choose()) == 20
    saved(here.directory, 30)
    assert step_of(here.choose()) == 30


def test_restart_does_not_read_the_mirror(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10, 20)
    saved(here.directory, 15)
    assert step_of(here.choose(is_new_here=False)) == 15
    assert here.reads == 0


def test_both_places_empty_start_at_the_beginning(tmp_path: Path) -> None:
    here = Cluster(tmp_path)
    assert step_of(here.choose()) is None


def test_empty_directory_does_not_start_over_while_the_mirror_is_away(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10)
    here.fail()
    for is_new_here in (True, False):
        with pytest.raises(VolumeError, match="the store is away"):
            here.choose(is_new_here=is_new_here)
    with pytest.raises(VolumeError, match="the store is away"):
        here.choose(start_over=True)


def test_run_with_a_checkpoint_resumes_while_the_mirror_is_away(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 20)
    saved(here.directory, 15)
    here.fail()
    choice = here.choose()
    assert step_of(choice) == 15
    assert choice.skipped == ["the store is away; the directory has a checkpoint"]


@pytest.mark.parametrize("is_new_here", [True, False])
def test_mirror_replaces_damaged_checkpoints(tmp_path: Path, is_new_here: bool) -> None:
    here = Cluster(tmp_path, 10, 20)
    saved(here.directory, 10, 20)
    here.damage(20)
    if is_new_here:
        assert step_of(here.choose()) == 20
    else:
        here.damage(10)
        assert step_of(here.choose(is_new_here=False)) == 20
    assert (here.directory / "step-00000020.attempt-1.broken").is_dir()


def test_damaged_copy_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10, 20)
    path = "/bucket/run/step-00000020.attempt-1/model.safetensors"
    here.filesystem.pipe_file(path, b"x" * here.filesystem.size(path))
    choice = here.choose()
    assert step_of(choice) == 10
    assert choice.skipped[0] == (
        f"checkpoint {URL}/step-00000020.attempt-1 is damaged: model.safetensors does not match"
        " its entry in MANIFEST.json"
    )


def test_damaged_copies_are_an_error_unless_the_run_may_start_over(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10)
    path = "/bucket/run/step-00000010.attempt-1/model.safetensors"
    here.filesystem.pipe_file(path, b"x")
    with pytest.raises(InputError, match="no checkpoint of the mirror is usable"):
        here.choose()
    choice = here.choose(start_over=True)
    assert step_of(choice) is None
    assert "is damaged" in choice.skipped[0]


def test_damage_in_both_places_is_an_error_unless_the_run_may_start_over(tmp_path: Path) -> None:
    here = Cluster(tmp_path)
    saved(here.directory, 10)
    here.damage(10)
    with pytest.raises(InputError, match="no checkpoint in"):
        here.choose()
    choice = here.choose(start_over=True)
    assert step_of(choice) is None
    assert "training starts from the beginning" in choice.skipped[-1]


def lose_manifests(here: Cluster, *steps: int) -> None:
    for step in steps:
        here.filesystem.rm_file(f"{ROOT}/{name(step)}/MANIFEST.json")


def test_older_copy_is_used_with_a_sentence_if_the_manifest_of_the_newest_is_lost(
    tmp_path: Path,
) -> None:
    here = Cluster(tmp_path, 10, 20)
    lose_manifests(here, 20)
    choice = here.choose()
    assert step_of(choice) == 10
    assert choice.skipped[0] == f"checkpoint {URL}/{name(20)} lacks a file"


def test_run_does_not_start_over_if_all_manifests_are_lost(tmp_path: Path) -> None:
    here = Cluster(tmp_path, 10, 20)
    lose_manifests(here, 10, 20)
    with pytest.raises(load.NoneUsableError, match=f"no checkpoint of the mirror is usable.*{URL}"):
        here.choose()
    assert step_of(here.choose(start_over=True)) is None
