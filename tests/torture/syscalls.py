"""Hand each file operation of a process to another process, which decides what happens to it.

A filter of seccomp stops the process at the system calls in `NUMBERS`, whatever library makes them.
The supervisor receives each one and lets it happen, answers with an error number, or kills the
process. This needs Linux, but no rights. The filter holds for all threads that start later.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

AT_FDCWD = -100
READS = frozenset({
    "read", "pread64", "readv", "stat", "lstat", "newfstatat", "statx", "statfs", "fstatfs",
    "getdents64",
})  # fmt: skip
"""Calls that change no file."""
_X86_64 = {
    "read": 0, "write": 1, "open": 2, "stat": 4, "lstat": 6, "pread64": 17, "pwrite64": 18,
    "readv": 19, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75, "truncate": 76,
    "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87,
    "symlink": 88, "statfs": 137, "fstatfs": 138, "getdents64": 217, "openat": 257,
    "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "fallocate": 285, "renameat2": 316, "copy_file_range": 326, "statx": 332,
}  # fmt: skip
_AARCH64 = {
    "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "statfs": 43,
    "fstatfs": 44, "truncate": 45, "ftruncate": 46, "fallocate": 47, "openat": 56,
    "getdents64": 61, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
    "pwrite64": 68, "sendfile": 71, "newfstatat": 79, "fsync": 82, "fdatasync": 83,
    "renameat2": 276, "copy_file_range": 285, "statx": 291,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64, 317), "aarch64": (0xC00000B7, _AARCH64, 277)}
"""By machine: its number in a filter, the watched system calls, and the number of `seccomp`."""

_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_CONTINUE = 1
_REQUEST = struct.Struct("<QIIiIQ6Q")
_REPLY = struct.Struct("<QqiI")


class UnsupportedError(Exception):
    """Error for a machine whose kernel cannot hand over system calls."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that waits for its answer."""

    id: int
    pid: int
    """Number of the thread that made it."""
    name: str
    arguments: tuple[int, ...]


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


def hand_over(channel: socket.socket, *, reads: bool = True) -> None:
    """Make this process stop at each watched call from now on. Send the listener to a supervisor.

    Args:
        channel: Socket to the supervisor.
        reads: Whether to stop at `READS`, too. Each stop costs two switches between processes.

    Raises:
        UnsupportedError: If this kernel cannot do it.
    """
    if platform.machine() not in _MACHINES:
        raise UnsupportedError(f"no system call numbers for {platform.machine()}")
    machine, all_numbers, seccomp = _MACHINES[platform.machine()]
    numbers = {n: number for n, number in all_numbers.items() if reads or n not in READS}
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 0, len(numbers) + 1, machine), (_LOAD, 0, 0, 0)]
    for left, number in zip(range(len(numbers), 0, -1), numbers.values(), strict=True):
        steps.append((_EQUAL, left, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = _Filter(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        raise UnsupportedError(f"seccomp: {os.strerror(ctypes.get_errno())}")
    socket.send_fds(channel, [b"."], [listener])
    os.close(listener)


class Supervisor:
    """The other end: receives the calls of one process, and answers them."""

    def __init__(self, channel: socket.socket) -> None:
        """Receive the listener. The process must have called `hand_over` with the other end."""
        data, (self._listener, *_), _, _ = socket.recv_fds(channel, 1, 1)
        assert data, "the process has ended before it handed over its calls"
        _, numbers, _ = _MACHINES[platform.machine()]
        self._names = {number: name for name, number in numbers.items()}

    def calls(self, deadline: float | None = None) -> Iterator[Call]:
        """Yield the calls of the process until it ends. Each one must be answered at once.

        Args:
            deadline: Maximum seconds between two calls.

        Raises:
            TimeoutError: If there is no call for so long.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            ready = poll.poll(None if deadline is None else 1000 * deadline)
            if not ready:
                raise TimeoutError("the process makes no file operation, and does not end")
            if not ready[0][1] & select.POLLIN:
                return
            data = bytearray(_REQUEST.size)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, data)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.EINTR}:
                    continue  # The thread was killed while it waited.
                raise
            identity, pid, _, number, _, _, *arguments = _REQUEST.unpack(data)
            yield Call(identity, pid, self._names[number], tuple(arguments))

    def proceed(self, call: Call) -> None:
        """Let a call happen."""
        self._answer(call, 0, _CONTINUE)

    def fail(self, call: Call, code: int) -> None:
        """Make a call fail with an error number, without an effect."""
        self._answer(call, -code, 0)

    def _answer(self, call: Call, code: int, flags: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # The thread was killed meanwhile.
            fcntl.ioctl(self._listener, _ANSWER, _REPLY.pack(call.id, 0, code, flags))

    def close(self) -> None:
        """Close the listener. Calls that still wait fail with ENOSYS."""
        os.close(self._listener)
