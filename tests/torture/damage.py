"""Damage states at rest: flipped bits, cut, missing and exchanged files, and mixed attempts."""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.torture.attempts import RECORDS, Attempt
from tests.torture.lab import Case, Lab

FLIPS = 200
"""Flipped bits per kind of state."""
SHARD_FLIPS = 40
"""The same, for states of several ranks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of place for a state."""

    name: str
    before: tuple[Attempt, ...]
    next: Attempt
    newest: str
    """Pattern of the folder of the newest state."""
    older: str = ""
    """Pattern of the folder of an older state, if there is one."""

    def home(self, lab: Lab) -> Path:
        """Return a new folder with the states."""
        return lab.copy(lab.template(f"{self.name} at rest", *self.before))


_SAVED = Attempt(1, memory=False, fail_after=9)
_KEPT = Attempt(1, fail_after=10)
_KEPT_ALONE = Attempt(1, volume=False, fail_after=10)
KINDS = (
    Kind("a checkpoint", (_SAVED,), Attempt(2, memory=False), "run/step-00000008.attempt-1",
         "run/step-00000004.attempt-1"),
    Kind("a record", (_KEPT,), Attempt(2), "records/step-00000010.attempt-1",
         "run/step-00000008.attempt-1"),
    Kind("a record without a volume", (_KEPT_ALONE,), Attempt(2, volume=False),
         "records/step-00000010.attempt-1"),
    Kind("a record from which an attempt started", (_KEPT, Attempt(2, fail_after=0)), Attempt(3),
         "records/step-00000010.attempt-1", "run/step-00000008.attempt-1"),
)  # fmt: skip


_SHARDED = replace(_SAVED, strategy="fsdp2", world=2)
_NEXT = replace(_SHARDED, number=2, fail_after=-1)


def _shards_of(strategy: str) -> Iterator[Kind]:
    """Yield the parts of a record of two ranks."""
    before = replace(_KEPT, strategy=strategy, world=2)
    name = "records/step-00000010.attempt-1"
    for part in ("", ".rank-0", ".rank-1"):
        yield Kind(
            f"part {part or 'of all ranks'} of a record, {strategy}",
            (before,),
            replace(before, number=2, fail_after=-1),
            f"{name}{part}",
            "run/step-00000008.attempt-1",
        )


SHARDS = (
    Kind("a checkpoint in parts", (_SHARDED,), _NEXT, "run/step-00000008.attempt-1",
         "run/step-00000004.attempt-1"),
    *_shards_of("fsdp2"),
    *_shards_of("zero1"),
)  # fmt: skip
"""Kinds of states of several ranks."""


def shards(lab: Lab) -> Iterator[Case]:
    """Yield damage to states of several ranks: flipped bits, and changes of files and folders."""
    yield from flips(lab, SHARDS[:2], SHARD_FLIPS)
    yield from changes(lab, SHARDS)


def flips(lab: Lab, kinds: Iterable[Kind] = KINDS, number: int = FLIPS) -> Iterator[Case]:
    """Yield flips of one bit each, over every file of a run."""
    for kind in kinds:
        rng = lab.random(kind.name)
        template = lab.template(f"{kind.name} at rest", *kind.before)
        files = sorted(
            str(path.relative_to(template))
            for path in template.rglob("*")
            if path.is_file() and path.stat().st_size and path.name != "output.txt"
        )
        for file in itertools.islice(itertools.cycle(files), number):
            bit = rng.randrange(8 * (template / file).stat().st_size)
            yield Case("bit flipped", f"{kind.name}: bit {bit} of {file}",
                       partial(_play, lab, kind, partial(flip, file, bit)))  # fmt: skip


def changes(lab: Lab, kinds: Iterable[Kind] = KINDS) -> Iterator[Case]:
    """Yield changes of whole files and folders."""
    for kind in kinds:
        template = lab.template(f"{kind.name} at rest", *kind.before)
        (folder,) = template.glob(kind.newest)
        for file in sorted(path.name for path in folder.iterdir()):
            for name, act in _of_file(lab, kind, file):
                yield Case(name, f"{kind.name}: {name}: {file}", partial(_play, lab, kind, act))
        for name, act in _of_folder(kind):
            yield Case("mixed attempts", f"{kind.name}: {name}", partial(_play, lab, kind, act))


Act = Callable[[Path], None]


def _of_file(lab: Lab, kind: Kind, file: str) -> Iterator[tuple[str, Act]]:
    path = f"{kind.newest}/{file}"
    for part in (0.0, 0.5, 0.999):
        yield "cut", partial(_cut, path, part)
    yield "grown", partial(_grow, path)
    yield "missing", partial(_remove, path)
    if kind.older:
        yield "mixed attempts", partial(_exchange, path, f"{kind.older}/{file}")
    yield "mixed runs", partial(_exchange_with_other_run, lab, kind, path)


def _of_folder(kind: Kind) -> Iterator[tuple[str, Act]]:
    parent = kind.newest.rpartition("/")[0]
    yield "all files missing", partial(_empty, kind.newest)
    yield "folder missing", partial(_remove, kind.newest)
    yield "name of another step", partial(_move, kind.newest, f"{parent}/step-00000012.attempt-1")
    yield (
        "name of another attempt",
        partial(_move, kind.newest, f"{parent}/{_of_attempt_7(kind)}"),
    )
    if kind.older:
        yield (
            "older state under a newer name",
            partial(_copy, kind.older, f"{parent}/step-00000016.attempt-1"),
        )
        yield "half of each state", partial(_mix, kind.newest, kind.older)


def _of_attempt_7(kind: Kind) -> str:
    """Return the name of the newest state as one of an attempt that never ran."""
    return f"{Path(kind.newest).name.partition('.')[0]}.attempt-7"


def _play(lab: Lab, kind: Kind, act: Act) -> str:
    """Damage a state, and return the verdict on the next start."""
    home = kind.home(lab)
    act(home)
    # The manifest does not cover the files about a record, such as its description.
    name = Path(kind.newest).name.partition(".rank-")[0]
    planted = (name, _of_attempt_7(kind)) if kind.newest.startswith(RECORDS) else ()
    verdict = lab.start(home, kind.next, planted)
    lab.clean(home)
    return verdict


def flip(file: str, bit: int, home: Path) -> None:
    """Flip a bit of a file."""
    data = bytearray((home / file).read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    (home / file).write_bytes(data)


def _cut(file: str, part: float, home: Path) -> None:
    data = (home / file).read_bytes()
    (home / file).write_bytes(data[: int(len(data) * part)])


def _grow(file: str, home: Path) -> None:
    (home / file).write_bytes((home / file).read_bytes() + b"\0")


def _remove(path: str, home: Path) -> None:
    if (home / path).is_dir():
        shutil.rmtree(home / path)
    else:
        (home / path).unlink()


def _empty(path: str, home: Path) -> None:
    for file in (home / path).iterdir():
        file.unlink()


def _move(path: str, new: str, home: Path) -> None:
    (home / path).rename(home / new)


def _copy(path: str, new: str, home: Path) -> None:
    shutil.copytree(home / path, home / new)


def _exchange(file: str, other: str, home: Path) -> None:
    if (home / other).exists():
        shutil.copyfile(home / other, home / file)
    else:
        (home / file).unlink()


def _exchange_with_other_run(lab: Lab, kind: Kind, file: str, home: Path) -> None:
    """Take a file from a run with other settings, which has a state of the same name."""
    other = (replace(attempt, settings={"clip_norm": 0.01}) for attempt in kind.before)
    _exchange(file, str(lab.template(f"{kind.before} of another run", *other) / file), home)


def _mix(path: str, other: str, home: Path) -> None:
    files = sorted(file.name for file in (home / other).iterdir())
    for name in files[::2]:
        shutil.copyfile(home / other / name, home / path / name)
