"""Faults of an object store: of the process that copies to it, of readers, and of objects at rest.

The store is one in memory. A run saves update 10, which is confirmed as copied, and then update 20.
The verdict is that of a start in another cluster, whose directory is empty.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from ddp_trainer.checkpoint import mirrored
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.remote.fetching import Fetched, fetch_newest
from ddp_trainer.errors import ReportedError, VolumeError
from tests.torture.lab import OLDER, REFUSED, RESUMED, Bad, Case, Lab
from tests.trainer.checkpoint.remote.memory import (
    ROOT,
    URL,
    FaultyFileSystem,
    Killed,
    Run,
    content,
    mirror_of,
    name,
    object_store,
)
from tests.trainer.checkpoint.remote.storm import Storm

FLIPS = 200
"""Flipped bits over all objects."""
STORMS = 60
OLD, NEW = name(10), name(20)
_LENGTHS = {"once": 1, "in a burst": 6, "from then on": 10**9}
"""Numbers of requests that fail. A burst is longer than the tries of one request."""
Fault = Callable[[str, str], None]


@dataclass(slots=True)
class Site:
    """A run that is mirrored, and what its store holds."""

    home: Path
    keep: int = 2
    store: FaultyFileSystem = field(default_factory=FaultyFileSystem)
    saved: dict[str, dict[str, bytes]] = field(default_factory=dict)
    confirmed: int = 0
    """Update of the newest copy that the mirror has confirmed."""

    def prepare(self) -> Run:
        """Save both checkpoints, and copy the first one."""
        run = Run(self.home / "run")
        for step in (10, 20):
            run.save(step)
            self.saved[name(step)] = content(self.home / "run" / name(step))
            if step == 10:
                self.copy(run)
        return run

    def copy(self, run: Run) -> None:
        """Mirror the newest checkpoint in a new process, as far as the faults permit."""
        mirror = mirror_of(run, self.store, keep=self.keep)
        try:
            mirror.turn()
        finally:
            self.confirmed = max(self.confirmed, mirror.status.step or 0)

    def calm(self) -> None:
        """End all faults."""
        self.store.fault, self.store.cut = lambda *_: None, lambda _, read: read

    def start(self, folder: str = "other") -> str:
        """Start in another cluster, and return the verdict.

        Raises:
            Bad: If the start is wrong without a sentence.
        """
        directory = self.home / folder
        directory.mkdir(exist_ok=True)
        try:
            choice = mirrored.choose(
                directory, partial(self._fetch, directory), start_over=False, is_new_here=True,
                sleep=lambda _: None,
            )  # fmt: skip
        except ReportedError:
            return REFUSED
        if choice.name is None:
            raise Bad("silent start over")
        found = str(choice.name)
        if _state(content(directory / found)) != _state(self.saved[found]):
            raise Bad(f"silent bad load: {found} differs from what was saved")
        if choice.name.step < self.confirmed and not any("damaged" in s or "lacks" in s
                                                         for s in choice.skipped):  # fmt: skip
            raise Bad(f"{found} instead of step {self.confirmed}, without a sentence")
        return RESUMED if choice.name.step >= self.confirmed else OLDER

    def _fetch(self, directory: Path, newer_than: CheckpointName | None) -> Fetched:
        try:
            return fetch_newest(object_store(self.store), directory, URL, newer_than)
        except OSError as error:
            raise VolumeError(str(error)) from error


def faults(lab: Lab) -> Iterator[Case]:
    """Yield faults of an object store."""
    for act in (_copies, _reads):
        for number, (request, path) in enumerate(_recorded(lab, act)):
            at = f"request {number} ({request} {path.removeprefix(ROOT)})"
            for torn in (False, True) if request == "write" else (False,):
                how = "in the middle of" if torn else "before"
                kill = partial(_kills, number, torn)
                yield Case("store: killed", f"{act.__name__}: killed {how} {at}",
                           partial(_play, lab, act, kill))  # fmt: skip
            for length, count in _LENGTHS.items():
                fail = partial(_fails, number, number + count)
                yield Case("store: error", f"{act.__name__}: {length} at {at}",
                           partial(_play, lab, act, fail))  # fmt: skip
    for text, damage in _damages(lab):
        yield Case("store: damaged object", text, partial(_damaged, lab, damage))
    for seed in range(STORMS):
        yield Case("store: storm", f"seed {seed}", partial(_storm, lab, lab.seed * STORMS + seed))


def _copies(site: Site, run: Run) -> None:
    """Copy the second checkpoint, and delete the first copy."""
    site.copy(run)


def _reads(site: Site, _: Run) -> None:
    """Start in another cluster. An error ends the start, which is right while the store fails."""
    site.start()


Act = Callable[[Site, Run], None]


def _state(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with the state. The manifest only tells whether they are whole."""
    return {file: data for file, data in files.items() if file != "MANIFEST.json"}


def _site(lab: Lab, act: Act) -> tuple[Site, Run]:
    """Return a site before an act."""
    site = Site(lab.folder(), keep=1 if act is _copies else 2)
    run = site.prepare()
    if act is _reads:
        site.copy(run)
    return site, run


def _recorded(lab: Lab, act: Act) -> list[tuple[str, str]]:
    """Return the requests of an act when nothing disturbs it."""
    site, run = _site(lab, act)
    seen: list[tuple[str, str]] = []
    site.store.fault = lambda request, path: seen.append((request, path))
    act(site, run)
    lab.clean(site.home)
    return seen


def _play(lab: Lab, act: Act, disturb: Callable[[FaultyFileSystem], Fault]) -> str:
    """Disturb an act, and return the verdict on a start after it."""
    site, run = _site(lab, act)
    site.store.fault = disturb(site.store)
    with contextlib.suppress(Killed):
        act(site, run)
    site.calm()
    verdict = site.start("after")
    if verdict == REFUSED:
        raise Bad("a start refuses what a fault of the store has left")
    site.copy(run)
    site.copy(run)
    if site.confirmed != 20 or site.start("end") != RESUMED:
        raise Bad("the mirror does not go on after the fault")
    lab.clean(site.home)
    return verdict


def _counted(act: Callable[[int, str, str], None]) -> Fault:
    """Return a fault that is called with the number of each request."""
    numbers = iter(range(1 << 30))
    return lambda request, path: act(next(numbers), request, path)


def _kills(at: int, torn: bool, store: FaultyFileSystem) -> Fault:
    def fault(number: int, _: str, path: str) -> None:
        if number != at:
            return
        if torn:
            plain: Any = MemoryFileSystem
            with plain._open(store, path, "wb") as file:
                file.write(b'{"fi')
        raise Killed

    return _counted(fault)


def _fails(first: int, end: int, _: FaultyFileSystem) -> Fault:
    def fault(number: int, request: str, path: str) -> None:
        if first <= number < end:
            raise OSError(5, f"503 to {request} {path}")

    return _counted(fault)


Damage = Callable[[FaultyFileSystem], None]


def _damages(lab: Lab) -> Iterator[tuple[str, Damage]]:
    """Yield what can happen to objects at rest."""
    site, _ = _site(lab, _reads)
    objects = sorted(site.store.find(ROOT))
    sizes = {path: len(site.store.cat_file(path)) for path in objects}
    lab.clean(site.home)
    rng = lab.random("store")
    for number in range(FLIPS):
        path = objects[number % len(objects)]
        bit = rng.randrange(8 * sizes[path])
        yield f"bit {bit} of {path.removeprefix(ROOT)} flipped", partial(_flip, path, bit)
    for path in objects:
        short = path.removeprefix(ROOT)
        for part in (0.0, 0.5, 0.999):
            yield f"{short} cut", partial(_cut, path, part)
        yield f"{short} grown", partial(_grow, path)
        yield f"{short} missing", partial(_remove, [path])
        if f"/{NEW}/" in path:
            older = path.replace(NEW, OLD)
            yield f"{short} exchanged with the older one", partial(_exchange, path, older)
    for missing in (OLD, NEW):
        paths = [path for path in objects if f"/{missing}/" in path]
        yield f"{missing} missing", partial(_remove, paths)
    manifests = [path for path in objects if path.endswith("MANIFEST.json")]
    yield "all manifests missing", partial(_remove, manifests)


def _damaged(lab: Lab, damage: Damage) -> str:
    site, _ = _site(lab, _reads)
    damage(site.store)
    verdict = site.start()
    lab.clean(site.home)
    return verdict


def _flip(path: str, bit: int, store: FaultyFileSystem) -> None:
    data = bytearray(store.cat_file(path))
    data[bit // 8] ^= 1 << bit % 8
    store.pipe_file(path, bytes(data))


def _cut(path: str, part: float, store: FaultyFileSystem) -> None:
    data = store.cat_file(path)
    store.pipe_file(path, data[: int(part * len(data))])


def _grow(path: str, store: FaultyFileSystem) -> None:
    store.pipe_file(path, store.cat_file(path) + b"\0")


def _remove(paths: list[str], store: FaultyFileSystem) -> None:
    for path in paths:
        store.rm_file(path)


def _exchange(path: str, other: str, store: FaultyFileSystem) -> None:
    store.pipe_file(path, store.cat_file(other))


def _storm(lab: Lab, seed: int) -> str:
    """Play a whole run under random faults."""
    home = lab.folder()
    try:
        Storm(seed, home).rage()
    except AssertionError as error:
        raise Bad(f"storm {seed}: {error}") from error
    shutil.rmtree(home)
    return RESUMED
