"""Record the file operations of a forked process in a case's folders, and interfere with them."""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.garbage import exempt_all_objects
from tests.torture.power_loss import Unsynced
from tests.torture.syscalls import AT_FDCWD, Call, Supervisor, hand_over

SECONDS = 180.0
"""Maximum seconds without a file operation, after which a process counts as hung."""
ADDRESS_SPACE = 1 << 30
"""Bytes of address space that a process may add, so that a false size fails at once."""
_BY_FOLDER = {
    "openat": 0, "mkdirat": 0, "newfstatat": 0, "statx": 0, "unlinkat": 0, "renameat": 2,
    "renameat2": 2, "linkat": 2, "symlinkat": 1,
}  # fmt: skip
"""Position of the folder's descriptor in the arguments of calls that take a folder and a path."""
_BY_PATH = {
    "open": 0, "stat": 0, "lstat": 0, "truncate": 0, "rename": 1, "mkdir": 0, "rmdir": 0,
    "link": 1, "unlink": 0, "symlink": 1, "statfs": 0,
}  # fmt: skip
"""Position of the path in the arguments of calls that take paths only."""
WRITES = frozenset({"write", "pwrite64", "writev"})
_CHANGES = WRITES | {
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "link",
    "linkat", "symlink", "symlinkat", "fallocate", "ftruncate", "truncate", "copy_file_range",
    "sendfile", "fsync", "fdatasync",
}  # fmt: skip
_OPEN_TO_CHANGE = os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True, slots=True)
class Operation:
    """One file operation in a case's folders."""

    number: int
    name: str
    path: str
    """Path below the case's folder."""
    changes: bool
    """Whether it writes, creates, renames, deletes or flushes."""

    def __str__(self) -> str:
        return f"operation {self.number} ({self.name} {self.path})"


Decide = Callable[[Operation], "int | str | None"]
"""Function that returns an error number, KILL, TEAR, or None to let the operation happen."""
KILL = "kill"
"""Kill the process before the operation."""
TEAR = "tear"
"""Write the first half of the bytes, then kill the process."""


@dataclass(slots=True)
class Result:
    """End of a process."""

    operations: list[Operation] = field(default_factory=list)
    status: int = 0
    """Exit code, negative for a signal."""
    output: str = ""
    """What it has printed."""
    answer: str = ""
    """What `act` has returned."""
    unsynced: Unsynced = field(default_factory=Unsynced)
    hung: bool = False


def proceed(_: Operation) -> None:
    """Let each operation happen."""


def run(
    act: Callable[[], str], home: Path, decide: Decide | None = None, *, reads: bool = True
) -> Result:
    """Fork a process that calls `act`, and wait for its end.

    Args:
        act: Function whose result is passed on.
        home: Folder of the case, whose subfolders count. The output of the process goes there, too.
        decide: Function that is called for each operation in the subfolders of `home`. Without it
            the process runs without a supervisor.
        reads: Whether operations that read count, too. Opening a file always counts.
    """
    here, there = socket.socketpair()
    with here:
        running = _fork(act, home, there if decide else None, reads=reads)
        there.close()
        try:
            if decide:
                _supervise(here, home, decide, running.result)
        except TimeoutError:
            running.result.hung = True
        except BaseException:
            running.kill()
            raise
        return running.wait()


def spawn(act: Callable[[], str], home: Path) -> "Running":
    """Fork a process that calls `act` without a supervisor, and return at once."""
    return _fork(act, home, None)


@dataclass(slots=True)
class Running:
    """A forked process."""

    pid: int
    answers: int
    """Descriptor of the pipe with the answer."""
    home: Path
    result: Result = field(default_factory=Result)

    def wait(self) -> Result:
        """Wait for the end of the process. Kill a process that hangs."""
        try:
            if not self.result.hung:
                self.result.answer = _read(self.answers)
        except TimeoutError:
            self.result.hung = True
        if self.result.hung:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.answers)
        _, status = os.waitpid(self.pid, 0)
        self.result.status = os.waitstatus_to_exitcode(status)
        self.result.output = (self.home / "output.txt").read_text(errors="replace")
        return self.result

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.answers)
        os.waitpid(self.pid, 0)


def _fork(
    act: Callable[[], str], home: Path, channel: socket.socket | None, *, reads: bool = True
) -> Running:
    answers, answer = os.pipe()
    (home / "output.txt").write_text("")
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        _child(act, home, channel, answer, reads=reads)
    os.close(answer)
    return Running(pid, answers, home)


def _child(
    act: Callable[[], str],
    home: Path,
    channel: socket.socket | None,
    answer: int,
    *,
    reads: bool,
) -> None:
    """Run `act` in the forked process, and end it."""
    code = 1
    try:
        exempt_all_objects()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(home / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # pytest may have replaced them, and would get what the process prints.
        sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if channel is not None:
            hand_over(channel, reads=reads)
        text = act()
        with open(answer, "wb", closefd=False) as pipe:
            pipe.write(text.encode())  # `os.write` ends early if a signal arrives meanwhile.
        code = 0
    except BaseException:  # noqa: BLE001 (the parent reads the traceback in the output)
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _read(descriptor: int) -> str:
    """Return what a process writes until it closes a pipe.

    Raises:
        TimeoutError: If it takes too long.
    """
    parts: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def _supervise(channel: socket.socket, home: Path, decide: Decide, result: Result) -> None:
    """Answer the calls of a process until it ends."""
    supervisor = Supervisor(channel)
    try:
        for call in supervisor.calls(SECONDS):
            operation = _operation(call, home, len(result.operations))
            if operation is None:
                supervisor.proceed(call)
                continue
            result.operations.append(operation)
            decision = decide(operation)
            if isinstance(decision, int):
                supervisor.fail(call, decision)
                continue
            # The order of two threads may differ from that of the recorded attempt.
            if decision == TEAR and call.name in WRITES:
                _tear(call)
                result.unsynced.note(call.pid, call.name, call.arguments, home / operation.path)
            if decision:
                os.kill(call.pid, signal.SIGKILL)
                continue
            result.unsynced.note(call.pid, call.name, call.arguments, home / operation.path)
            supervisor.proceed(call)
    finally:
        supervisor.close()


def _operation(call: Call, home: Path, number: int) -> Operation | None:
    """Return the operation that a call makes below a subfolder of `home`, or None."""
    try:
        path = _path(call)
    except OSError:
        return None  # The thread was killed meanwhile.
    if path is None or not path.is_relative_to(home) or path.parent == home.parent:
        return None
    relative = path.relative_to(home)
    if len(relative.parts) < 1 or relative.name == "output.txt":
        return None
    changes = call.name in _CHANGES or bool(_flags(call) & _OPEN_TO_CHANGE)
    return Operation(number, call.name, str(relative), changes)


def _flags(call: Call) -> int:
    return {"open": call.arguments[1], "openat": call.arguments[2]}.get(call.name, 0)


def _path(call: Call) -> Path | None:
    """Return the path that a call uses, without links in its folder; None if it has none."""
    process = Path(f"/proc/{call.pid}")
    if call.name in _BY_FOLDER:
        at = _BY_FOLDER[call.name]
        folder, text = _signed(call.arguments[at]), _text(call, at + 1)
    elif call.name in _BY_PATH:
        folder, text = AT_FDCWD, _text(call, _BY_PATH[call.name])
    else:
        descriptor = call.arguments[2 if call.name == "copy_file_range" else 0]
        return _target(process / "fd" / str(descriptor))
    if text.startswith("/proc/self/"):
        text = f"/proc/{call.pid}/{text.removeprefix('/proc/self/')}"
    if not text:
        return _target(process / "fd" / str(folder))
    if not text.startswith("/"):
        base = process / "cwd" if folder == AT_FDCWD else process / "fd" / str(folder)
        found = _target(base)
        if found is None:
            return None
        text = f"{found}/{text}"
    path = Path(text)
    return Path(os.path.realpath(path.parent)) / path.name


def _target(link: Path) -> Path | None:
    """Return the path of an open file. None for a pipe, and for a file that was deleted."""
    found = str(link.readlink())
    return Path(found) if found.startswith("/") else None


def _signed(number: int) -> int:
    return (number & 0xFFFFFFFF) - (1 << 32 if number & 0x80000000 else 0)


def _text(call: Call, at: int) -> str:
    """Return a text in the memory of the process."""
    if call.arguments[at] == 0:
        return ""
    return os.fsdecode(memory(call.pid, call.arguments[at], 4096).partition(b"\0")[0])


def memory(pid: int, address: int, size: int) -> bytes:
    """Return up to `size` bytes of a process's memory."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        # A text may end near the end of its last mapped page.
        page = os.sysconf("SC_PAGE_SIZE")
        found = b""
        while len(found) < size:
            place = address + len(found)
            part = min(size - len(found), page - place % page)
            try:
                file.seek(place)
                found += file.read(part)
            except OSError:
                break
            if size == 4096 and b"\0" in found:
                break
        return found


def _tear(call: Call) -> None:
    """Write the first half of the bytes of a call, as a process does that dies in it."""
    descriptor, address, size, place = call.arguments[:4]
    if call.name == "writev":
        return
    process = Path(f"/proc/{call.pid}")
    if call.name == "write":
        lines = (process / "fdinfo" / str(descriptor)).read_text().splitlines()
        place = next(int(line.split()[1]) for line in lines if line.startswith("pos:"))
    data = memory(call.pid, address, size // 2)
    file = os.open(process / "fd" / str(descriptor), os.O_WRONLY)
    try:
        os.pwrite(file, data, place)
    finally:
        os.close(file)


def each(operations: list[Operation]) -> Iterator[tuple[Operation, str]]:
    """Yield each point at which a kill leaves other files: before a change, and inside a write."""
    for operation in operations:
        if not operation.changes:
            continue
        yield operation, KILL
        if operation.name in WRITES:
            yield operation, TEAR
