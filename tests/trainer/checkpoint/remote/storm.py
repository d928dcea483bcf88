"""Random faults on a mirror and on its readers: `python -m tests.trainer.checkpoint.remote.storm`.

Each seed is one run that saves checkpoints. Requests fail, answers are cut, lists are out of date,
and the mirror is killed at a random request. A reader must get a checkpoint bit for bit as it was
saved, and not an older one than the mirror has confirmed, or an error.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ddp_trainer.checkpoint.format import BrokenCheckpointError, CheckpointName
from ddp_trainer.checkpoint.remote.fetching import fetch_newest
from ddp_trainer.checkpoint.remote.mirror import Mirror
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from tests.trainer.checkpoint.remote.memory import (
    URL,
    FaultyFileSystem,
    Killed,
    Run,
    content,
    object_store,
)

SAVES = 5


class Storm:
    """One run under faults."""

    def __init__(self, seed: int, home: Path) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same faults for the same seed
        self.home = home
        self.filesystem = FaultyFileSystem()
        self.run = Run(home / "run")
        self.saved: dict[str, dict[str, bytes]] = {}
        self.confirmed = 0
        self.counts: Counter[str] = Counter()
        self.kill_at = -1

    def fault(self, request: str, _: str) -> None:
        self.kill_at -= 1
        if self.kill_at == 0:
            self.counts["kills"] += 1
            raise Killed
        if self.chance.random() < 0.15:
            self.counts["errors"] += 1
            raise OSError(5, f"500 to {request}")

    def cut(self, _: str, read: bytes) -> bytes:
        if len(read) > 1 and self.chance.random() < 0.1:
            self.counts["cut answers"] += 1
            return read[: self.chance.randrange(len(read))]
        return read

    def disturb(self) -> None:
        """Begin to inject faults, and maybe a kill."""
        self.filesystem.fault, self.filesystem.cut = self.fault, self.cut
        names = set(self.saved)
        self.filesystem.hidden = {name for name in names if self.chance.random() < 0.3}
        self.counts["stale lists"] += bool(self.filesystem.hidden)
        self.kill_at = self.chance.randrange(1, 60) if self.chance.random() < 0.5 else -1

    def calm(self) -> None:
        self.filesystem.fault, self.filesystem.cut = lambda *_: None, lambda _, read: read
        self.filesystem.hidden = set()

    def mirror(self) -> None:
        """Mirror in a new process, which ends after some turns or a kill."""
        source = DirectoryStore(self.run.directory)
        mirror = Mirror(source, object_store(self.filesystem), keep=2, sleep=lambda _: None)
        try:
            for _ in range(self.chance.randrange(1, 4)):
                mirror.turn()
        except Killed:
            pass
        self.confirmed = max(self.confirmed, mirror.status.step or 0)

    def read(self, folder: Path) -> None:
        """Read as another cluster does, and check what arrives."""
        folder.mkdir(parents=True)
        try:
            found = fetch_newest(object_store(self.filesystem), folder, URL).name
        except (OSError, BrokenCheckpointError, Killed):
            self.counts["loads with an error"] += 1
            return
        finally:
            self.calm()
        self.counts["loads"] += 1
        name = CheckpointName.parse(found or "")
        if name is None:
            assert not self.confirmed, "a silent start over"
            return
        assert content(folder / str(name)) == self.saved[str(name)], "a silent bad load"
        assert name.step >= self.confirmed, "an older checkpoint than the newest whole one"

    def rage(self) -> Counter[str]:
        """Save, mirror and read under faults, and at the end without them."""
        for step in range(1, SAVES + 1):
            self.run.save(step)
            name = f"step-{step:08d}.attempt-1"
            self.saved[name] = content(self.run.directory / name)
            self.disturb()
            self.mirror()
            self.calm()
            self.read(self.home / "calm" / name)
            self.disturb()
            self.read(self.home / "disturbed" / name)
        self.mirror()
        self.mirror()
        assert self.confirmed == SAVES
        self.read(self.home / "end")
        assert self.counts["loads"] > 0
        return self.counts


def main(arguments: list[str]) -> None:
    """Run many seeds, and print what was injected and found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as home:
            total += Storm(seed, Path(home)).rage()
    found = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    print(f"{options.seeds} runs: {found}; 0 silent bad loads, 0 silent starts over")


if __name__ == "__main__":
    main(sys.argv[1:])
