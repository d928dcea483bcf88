"""The folders of the cases, the states that are right, and the verdict on the next start."""

import json
import random
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.torture import attempts, gangs, imports
from tests.torture.attempts import RECORDS, RUN, Attempt
from tests.torture.operations import Decide, Operation, Result

SENTENCE = 700
"""Maximum number of characters of a refusal."""
MEMORY = Path("/dev/shm")
_NAME = re.compile(r"step-\d+\.attempt-\d+")


class Bad(Exception):  # noqa: N818 (a finding, not an error of the program)
    """Finding that fails the torture. Its text says what happened."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault. `play` returns what happened, in one of the words of `OUTCOMES`."""

    fault: str
    """Kind of the fault: a row of the table."""
    name: str
    play: Callable[[], str]


RESUMED, OLDER, REFUSED, BEGAN, HELD = (
    "newest", "older, said so", "refused", "began, nothing saved", "no effect",
)  # fmt: skip
OUTCOMES = (RESUMED, OLDER, REFUSED, BEGAN, HELD)


@dataclass(slots=True)
class Lab:
    """Folders of all cases, and the hash of the state after each update of undisturbed runs."""

    home: Path
    seed: int
    recordings: dict[tuple[str, bool], list[Operation]] = field(default_factory=dict)
    """File operations of an undisturbed attempt, by the name of its row, with or without reads."""
    _right: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    _templates: dict[str, Path] = field(default_factory=dict)
    _count: int = 0

    def right(self, attempt: Attempt) -> dict[int, str]:
        """Return the hash of the state after each update, if nothing disturbs the run."""
        key = attempt.strategy, attempt.world
        if key not in self._right:
            folder = self.folder()
            result = gangs.run(partial(attempts.undisturbed, attempt), attempt.world, folder)
            if not result.answer:
                raise AssertionError(f"the undisturbed run has failed: {result.output}")
            self._right[key] = {int(step): h for step, h in json.loads(result.answer).items()}
            shutil.rmtree(folder)
        return self._right[key]

    def random(self, *key: object) -> random.Random:
        """Return a generator for one purpose."""
        return random.Random(f"{self.seed} {key}")  # noqa: S311 (faults)

    def template(self, name: str, *done: Attempt) -> Path:
        """Return a folder in which some attempts have run. It must not be changed."""
        if name not in self._templates:
            home = self.folder()
            (home / RECORDS).mkdir()
            for attempt in done:
                self.attempt(home, attempt)
            self._templates[name] = home
        return self._templates[name]

    def copy(self, template: Path) -> Path:
        """Return a new folder with the same content."""
        home = self.folder()
        home.rmdir()
        return Path(shutil.copytree(template, home, symlinks=True))

    def attempt(self, home: Path, attempt: Attempt, decide: Decide | None = None) -> Result:
        """Run an attempt. Without a supervisor it must end in an orderly way.

        Raises:
            Bad: If it ends by a traceback or hangs.
        """
        result = gangs.run(attempt.train, attempt.world, home, decide)
        if decide is None:
            orderly(result)
        return result

    def start(self, home: Path, attempt: Attempt, planted: Collection[str] = ()) -> str:
        """Start an attempt, and return the verdict on it.

        Args:
            home: Folder of the case.
            attempt: The attempt.
            planted: Names of states that may be unusable although its checksums are right.

        Raises:
            Bad: If it starts from a wrong state, from the beginning without a reason, from an older
                state than the newest whole one, or ends without one sentence.
        """
        floor, names = newest_whole(home, attempt, planted), _names(home, attempt)
        result = gangs.run(attempt.start, attempt.world, home)
        orderly(result)
        found = json.loads(result.answer)
        if "refused" in found:
            sentence = found["refused"]
            if not sentence or "\n" in sentence or len(sentence) > SENTENCE:
                raise Bad(f"the refusal is no single sentence: {sentence!r}")
            return REFUSED
        step, said = found["step"], _warnings(result.output)
        if found["digest"] != self.right(attempt)[step]:
            raise Bad(f"silent bad load: the state at step {step} is none of the run")
        if step < floor:
            raise Bad(f"the start is at step {step}, although step {floor} is whole")
        if step == 0 and names and not said:
            raise Bad("silent start over")
        if step == 0 and not names:
            return BEGAN
        if step < max(names, default=0) and not said:
            raise Bad(f"step {step} instead of the damaged step {max(names)}, without a sentence")
        return RESUMED if step >= max(names, default=0) else OLDER

    def resumed(self, home: Path, attempt: Attempt, fault: str) -> str:
        """Start an attempt that must not refuse what a fault has left. Delete its folder.

        Args:
            home: Folder of the case.
            attempt: The attempt.
            fault: The fault, as a subject of a sentence.

        Raises:
            Bad: As `start`, or if the attempt refuses to start.
        """
        verdict = self.start(home, attempt)
        self.clean(home)
        if verdict == REFUSED:
            raise Bad(f"the next start refuses what {fault} has left")
        return verdict

    def clean(self, home: Path) -> None:
        """Delete the folder of a case."""
        shutil.rmtree(home, ignore_errors=True)

    def folder(self) -> Path:
        """Return a new folder."""
        self._count += 1
        folder = self.home / str(self._count)
        folder.mkdir()
        return folder


def open_lab(seed: int) -> tuple[Lab, "tempfile.TemporaryDirectory[str]"]:
    """Return a lab with its temporary folder, in memory if there is a folder for that."""
    folder = tempfile.TemporaryDirectory(
        prefix="torture-", dir=MEMORY if MEMORY.is_dir() else None, ignore_cleanup_errors=True
    )
    home = Path(folder.name).resolve()
    imports.import_all(home)
    return Lab(home, seed), folder


def orderly(result: Result) -> None:
    """Check that a process has ended by itself, without a traceback.

    Raises:
        Bad: If it has not.
    """
    if result.hung:
        raise Bad(f"the process hangs: {result.output[-500:]}")
    if result.status:
        raise Bad(f"the process ended with {result.status}: {result.output[-1500:]}")


def newest_whole(home: Path, attempt: Attempt, planted: Collection[str] = ()) -> int:
    """Return the newest step of which a whole checkpoint or record exists; -1 without one.

    This reads the format by itself, so that it cannot share a fault with the product.
    """
    places = [path for path in _places(home, attempt) if path.name not in planted]
    return max((_step(path) for path in places if is_whole(path)), default=-1)


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint or a record is whole: all its parts, if each rank has one."""
    try:
        part = json.loads((folder / "part.json").read_bytes())
    except (OSError, ValueError):
        return _is_intact(folder)
    divided = isinstance(part, dict) and part.get("division") == "all"
    ranks = range(part["world_size"]) if divided else ()
    own = [folder.with_name(f"{folder.name}.rank-{rank}") for rank in ranks]
    return all(map(_is_intact, [folder, *own]))


def _is_intact(folder: Path) -> bool:
    """Return whether each file that the manifest lists is there and has its checksum."""
    try:
        if folder.is_symlink():
            return False
        files = json.loads((folder / "MANIFEST.json").read_bytes())["files"]
        for name, entry in files.items():
            path = folder / name
            if path.is_symlink() or path.stat().st_size != entry["bytes"]:
                return False
            if f"{zlib.crc32(path.read_bytes()):08x}" != entry["crc32"]:
                return False
        state = json.loads((folder / "state.json").read_bytes())
        has_model = any(name.startswith("model") for name in files)
        return bool(state["step"] == _step(folder)) and has_model
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _names(home: Path, attempt: Attempt) -> list[int]:
    return [_step(path) for path in _places(home, attempt)]


def _places(home: Path, attempt: Attempt) -> Iterator[Path]:
    """Yield the folders with the names of checkpoints and records, whole or not."""
    folders = [RUN] if attempt.volume else []
    folders += [RECORDS] if attempt.memory else []
    for folder in folders:
        for path in (home / folder).glob("step-*.attempt-*"):
            if _NAME.fullmatch(path.name):
                yield path


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-").partition(".")[0])


def _warnings(output: str) -> list[str]:
    """Return the warnings in the output of an attempt."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [event["message"] for event in events if event["event"] == "warning"]
