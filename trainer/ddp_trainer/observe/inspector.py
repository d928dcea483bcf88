"""Answer the agent's request for the activity of this rank while its training is stuck.

A thread waits for the request and costs nothing until then. It answers while the training thread
waits in a collective, sleeps or loops. It cannot answer if the process is stopped or if native code
holds the interpreter lock. In that case the agent reports the state of the process in the kernel.
"""

import contextlib
import ctypes
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ddp_trainer.observe.collective_record import collective_name, newest_collectives
from ddp_wire.activity import ANSWER_SUFFIX, QUESTION_SUFFIX
from ddp_wire.messages import INSPECTED_COLLECTIVES, RankInspection

_FRAMES = 12
"""Maximum number of stack frames in an answer, counted from the innermost frame."""
_STACK_CHARACTERS = 4096
_NAME_CHARACTERS = 128
_WAITING_IN = (
    "/torch/distributed/",
    "/torch/autograd/graph.py",
    "/torch/nn/parallel/distributed.py",
    "/torch/cuda/",
    "/ddp_trainer/ranks/",
)
"""Functions in which a training thread waits for other ranks, by file. The backward pass waits in
C++ code below torch's autograd, while a hook of the user has its own frame. A thread that waits for
the GPU waits for collectives on the GPU."""

_COMPILING_IN = (
    ("/torch/_dynamo/convert_frame.py", ""),
    ("/torch/_inductor/compile_fx.py", "compile"),
)
"""Functions that compile, by file and by a part of the name. Compiled code that runs has other
frames of these packages."""

_AUTOGRAD_THREAD = b"pt_autograd_"
"""Prefix of the names of autograd's threads, one per device (torch/csrc/autograd/engine.cpp)."""


@contextlib.contextmanager
def answering(directory: Path | None, local_rank: int) -> Iterator[None]:
    """Answer requests about the calling thread, which must be the training thread.

    Args:
        directory: Directory of heartbeats. None means that no agent exists.
        local_rank: This rank's number on its node.
    """
    server = _bind(directory, local_rank)
    if directory is None or server is None:
        yield
        return
    path = directory / f"{local_rank}{ANSWER_SUFFIX}"
    arguments = (server, path, threading.get_ident())
    threading.Thread(target=_serve, args=arguments, name="ddp-inspector", daemon=True).start()
    try:
        yield
    finally:
        server.close()


def _bind(directory: Path | None, local_rank: int) -> socket.socket | None:
    """Return a socket for requests, or None without a directory or socket support."""
    if directory is None:
        return None
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = directory / f"{local_rank}{QUESTION_SUFFIX}"
    try:
        path.unlink(missing_ok=True)
        server.bind(str(path))
    except OSError:
        server.close()
        return None
    return server


def _serve(server: socket.socket, path: Path, thread: int) -> None:
    with contextlib.suppress(OSError):  # The socket is closed at the end of the attempt.
        while server.recv(64):
            pending = path.with_name(f".{path.name}.tmp")
            pending.write_text(inspect(thread).to_json(), encoding="utf-8")
            pending.replace(path)


def inspect(thread: int) -> RankInspection:
    """Return the stack and the activity of a training thread.

    Args:
        thread: Identifier of the thread.
    """
    frame = _innermost(thread)
    entries = newest_collectives(INSPECTED_COLLECTIVES)
    return RankInspection(
        waits=frame is not None and any(p in frame.f_code.co_filename for p in _WAITING_IN),
        compiles=_compiles(frame),
        stack=_render(frame),
        number=entries[-1]["collective_seq_id"] if entries else None,
        collectives=[collective_name(entry)[:_NAME_CHARACTERS] for entry in entries],
    )


def _compiles(frame: FrameType | None) -> bool:
    """Return whether a thread is compiling code of the model."""
    return frame is not None and any(
        file in one.f_code.co_filename and part in one.f_code.co_name
        for one, _ in traceback.walk_stack(frame)
        for file, part in _COMPILING_IN
    )


def _innermost(thread: int) -> FrameType | None:
    """Return the innermost Python frame of a training thread.

    With CUDA a hook of the backward pass runs in a thread of autograd, for which the training
    thread waits. The module `threading` does not list threads that were started in C.
    """
    frames = sys._current_frames()  # noqa: SLF001 (the documented way to read other threads)
    known = {one.ident for one in threading.enumerate()}
    others = frames.keys() - known - {thread}
    hooks = [frames[ident] for ident in others if _name(ident).startswith(_AUTOGRAD_THREAD)]
    return hooks[0] if hooks else frames.get(thread)


def _name(thread: int) -> bytes:
    """Return the name of a thread in the operating system, or "".

    `PyDLL` keeps the interpreter lock, so that a thread with a Python frame cannot end during the
    call.
    """
    name = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_getname_np(ctypes.c_ulong(thread), name, ctypes.c_size_t(64))
    return name.value


def _render(frame: FrameType | None) -> str:
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame)) if frame else []
    lines = traceback.format_list(list(reversed(summary))[-_FRAMES:])
    return "".join(lines)[-_STACK_CHARACTERS:]
