"""States that another tenant has planted, and a tenant that writes into the records of a job."""

import json
import os
import pickle
import shutil
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ddp_agent.processes.records import RecordsFolder
from tests.torture import operations
from tests.torture.attempts import RECORDS, Attempt
from tests.torture.damage import KINDS, Kind
from tests.torture.lab import HELD, Bad, Case, Lab

MARK = "the pickle has run"
"""Name of the file that a malicious pickle creates."""
HUGE = 100 << 30
"""A false size, in bytes."""
LARGE = operations.ADDRESS_SPACE + (1 << 29)
"""Size of a file of zeros that no start can read into memory, in bytes."""
NOBODY = 65534
Act = Callable[[Path, Path], None]
"""Function of the folder of the newest state and of the case's folder."""


def plants(lab: Lab) -> Iterator[Case]:
    """Yield states that a writer with access to the store has planted."""
    for kind in KINDS[:3]:
        for name, act in ACTS.items():
            yield Case("hostile content", f"{kind.name}: {name}", partial(_plant, lab, kind, act))
    for name, settings in OTHERS.items():
        other = Attempt(1, volume=False, fail_after=11, job="other", settings=settings)
        for kind in KINDS[1:3]:
            yield Case("another job's record", f"{kind.name}: {name}",
                       partial(_foreign, lab, kind, other))  # fmt: skip


def tenants(lab: Lab) -> Iterator[Case]:
    """Yield what a process of another user tries in the records of a job. This needs root."""
    if os.getuid():
        return
    for name, act in TENANTS.items():
        yield Case("another tenant's process", name, partial(_intrude, lab, act))


def _plant(lab: Lab, kind: Kind, act: Act) -> str:
    home = kind.home(lab)
    (folder,) = home.glob(kind.newest)
    secret = home / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    act(folder, home)
    verdict = lab.start(home, kind.next, planted=[folder.name])
    if (home / MARK).exists():
        raise Bad("the pickle has run")
    if (secret / "file").read_text() != "secret":
        raise Bad("a file outside of the store was changed")
    lab.clean(home)
    return verdict


def _foreign(lab: Lab, kind: Kind, other: Attempt) -> str:
    """Put a record of another job into the folder of this job's node."""
    home = kind.home(lab)
    theirs = lab.template(f"record of another job {other.settings}", other)
    for part in (theirs / RECORDS).glob("step-*"):
        shutil.copytree(part, home / RECORDS / part.name)
    (record,) = {part.name.partition(".rank-")[0] for part in (theirs / RECORDS).glob("step-*")}
    verdict = lab.start(home, kind.next, planted=[record])
    lab.clean(home)
    return verdict


OTHERS: dict[str, dict[str, Any]] = {
    "another seed": {"seed": 7},
    "the same settings except clipping": {"clip_norm": 0.01},
}


def _list(folder: Path, name: str, entry: dict[str, Any]) -> None:
    """Change an entry of the manifest."""
    manifest = folder / "MANIFEST.json"
    document = json.loads(manifest.read_text())
    document["files"][name] = entry
    manifest.write_text(json.dumps(document))


def _rewrite(name: str, content: bytes, folder: Path) -> None:
    """Replace a file, and list it in the manifest as if its writer had written it."""
    (folder / name).write_bytes(content)
    _list(folder, name, {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"})


class _Bomb:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def _pickle(name: str, folder: Path, home: Path) -> None:
    _rewrite(name, pickle.dumps(_Bomb(home / MARK)), folder)


def _claim(header: dict[str, Any], size: int | None, folder: Path, _: Path) -> None:
    """Write a tensor file whose header claims a size."""
    text = json.dumps(header).encode()
    length = len(text) if size is None else size
    _rewrite("model.safetensors", struct.pack("<Q", length) + text, folder)


def _claim_bytes(folder: Path, _: Path) -> None:
    """List a file with a false size, which a sparse file really has."""
    os.truncate(folder / "model.safetensors", HUGE)


def _grow(name: str, folder: Path, _: Path) -> None:
    """Make a file of zeros with the right checksum, which is too large for memory."""
    crc, zeros = 0, bytes(1 << 24)
    with (folder / name).open("r+b") as file:
        os.truncate(file.fileno(), 0)
        os.truncate(file.fileno(), LARGE)
    for _number in range(LARGE >> 24):
        crc = zlib.crc32(zeros, crc)
    _list(folder, name, {"bytes": LARGE, "crc32": f"{crc:08x}"})


def _nest(folder: Path, _: Path) -> None:
    _rewrite("state.json", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, folder)


def _large_number(folder: Path, _: Path) -> None:
    _rewrite("state.json", b'{"step": ' + b"9" * 5000 + b"}", folder)


def _link_file(name: str, folder: Path, home: Path) -> None:
    """Move a file out of the state, and leave a link to it."""
    (folder / name).rename(home / "secret" / name)
    (folder / name).symlink_to(home / "secret" / name)


def _link_folder(folder: Path, home: Path) -> None:
    folder.rename(home / "secret" / "state")
    folder.symlink_to(home / "secret" / "state")


def _link_pending(folder: Path, home: Path) -> None:
    """Plant a link under the name of an unfinished state, which a start deletes."""
    folder.with_name("step-00000016.attempt-1.tmp").symlink_to(home / "secret")


def _link_next(folder: Path, home: Path) -> None:
    """Plant a link under the name of a newer state."""
    folder.with_name("step-00000016.attempt-1").symlink_to(home / "secret")


def _pipe(name: str, folder: Path, _: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def _socket(folder: Path, _: Path) -> None:
    (folder / "state.json").unlink()
    here = Path.cwd()
    os.chdir(folder)  # The name of a socket has at most 108 characters.
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind("state.json")
    os.chdir(here)


def _folder_for_file(folder: Path, _: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


def _escape(name: str, folder: Path, _: Path) -> None:
    _list(folder, name, {"bytes": 6, "crc32": f"{zlib.crc32(b'secret'):08x}"})


def _fence(content: str, _: Path, home: Path) -> None:
    if (home / "run").exists():
        (home / "run" / "FENCE.json").write_text(content)


def _fence_link(_: Path, home: Path) -> None:
    if (home / "run").exists():
        (home / "run" / "FENCE.json").unlink()
        (home / "run" / "FENCE.json").symlink_to(home / "secret" / "file")


_TENSOR = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [0, HUGE]}
ACTS: dict[str, Act] = {
    "a pickle as model.safetensors": partial(_pickle, "model.safetensors"),
    "a pickle as state.json": partial(_pickle, "state.json"),
    "a pickle as task.json": partial(_pickle, "task.json"),
    "a pickle beside the files": partial(_pickle, "model.pt"),
    "a header of 100 GB": partial(_claim, {}, HUGE),
    "a tensor of 100 GB": partial(_claim, {"inner.weight": _TENSOR}, None),
    "a shape of 2^66 numbers": partial(
        _claim, {"w": {"dtype": "F32", "shape": [2**62, 16], "data_offsets": [0, 0]}}, None
    ),
    "a sparse file of 100 GB": _claim_bytes,
    "state.json larger than memory, with the right checksum": partial(_grow, "state.json"),
    "optimizer.json larger than memory, with the right checksum": partial(_grow, "optimizer.json"),
    "deep JSON": _nest,
    "a number of 5,000 digits": _large_number,
    "a link for a tensor file": partial(_link_file, "model.safetensors"),
    "a link for state.json": partial(_link_file, "state.json"),
    "a link for the manifest": partial(_link_file, "MANIFEST.json"),
    "a link for the folder": _link_folder,
    "a link under an unfinished name": _link_pending,
    "a link under a newer name": _link_next,
    "a pipe for state.json": partial(_pipe, "state.json"),
    "a pipe for the manifest": partial(_pipe, "MANIFEST.json"),
    "a socket for state.json": _socket,
    "a folder for state.json": _folder_for_file,
    "../ in the manifest": partial(_escape, "../../secret/file"),
    "an absolute path in the manifest": partial(_escape, "/etc/passwd"),
    "an empty name in the manifest": partial(_escape, ""),
    "a fence without an attempt": partial(_fence, "{}"),
    "a fence that is deep JSON": partial(_fence, "[" * 100_000),
    "a link for the fence": _fence_link,
}


def _intrude(lab: Lab, act: Callable[[Path], None]) -> str:
    """Let a process of another user try to change the records of a job."""
    kind = KINDS[1]
    home = kind.home(lab)
    own = RecordsFolder("torture", 0, home / RECORDS)
    assert own.path is not None
    for part in (home / RECORDS).glob("step-*"):
        part.rename(own.path / part.name)
    for path in [lab.home, *lab.home.parents[:-1], home, home / RECORDS]:
        if path.is_relative_to(lab.home) or path == home:
            path.chmod(0o777)  # As /dev/shm is: only the folder of the job itself protects it.
    before = _content(own.path)

    def attack() -> str:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            act(own.path or Path())
        except PermissionError as error:
            return str(error)
        return ""

    result = operations.run(attack, home)
    if result.status or not result.answer:
        raise Bad(f"the other user was not refused: {result.output[-300:]}")
    if _content(own.path) != before:
        raise Bad("the other user has changed a record")
    lab.clean(home)
    return HELD


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _overwrite(folder: Path) -> None:
    (folder / "step-00000010.attempt-1" / "state.json").write_text("{}")


def _read(folder: Path) -> None:
    (folder / "step-00000010.attempt-1" / "model.safetensors").read_bytes()


def _ask(folder: Path) -> None:
    (folder / "leave").write_text("2")


def _list_all(folder: Path) -> None:
    list(folder.iterdir())


TENANTS: dict[str, Callable[[Path], None]] = {
    "writes a new record": lambda folder: (folder / "step-00000099.attempt-1").mkdir(),
    "changes a file": _overwrite,
    "reads the weights": _read,
    "deletes the record": lambda folder: shutil.rmtree(folder / "step-00000010.attempt-1"),
    "lists the folder": _list_all,
    "asks the ranks to leave": _ask,
    "takes the lock": lambda folder: os.close(os.open(folder / "lock", os.O_RDWR)),
}
