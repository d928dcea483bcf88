"""Decode the JSON of lists one object at a time, outside the event loop.

If 500 pods are decoded at once, they take 35 MB in small blocks of memory. The few objects that the
operator keeps would lie between these blocks, so Python could not return the memory to the system.
"""

import asyncio
import functools
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields

Decode = Callable[[bytes], Manifest]
"""Function that decodes a response. It raises ValueError for a text that it cannot decode."""

LARGE = 1 << 16
"""Minimum size in bytes of an answer that the thread decodes, which takes about 1 ms."""
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class DecoderThread:
    """Thread that decodes large answers, so that the event loop does not wait for it.

    glibc gives each thread its own memory arena. So the objects of a list do not lie between
    objects of the event loop, for example connections. When all jobs are gone, glibc can return the
    memory to the system.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    async def decode(self, text: bytes, decode: Decode) -> Manifest:
        """Decode an answer: a large answer in the thread, a small one in the caller.

        Raises:
            ValueError: `decode` cannot decode it.
        """
        if len(text) < LARGE:
            return decode(text)
        return await asyncio.get_running_loop().run_in_executor(self._thread, decode, text)

    def close(self) -> None:
        """End the thread after its current answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def list_decoder(kind: str) -> Decode:
    """Return a function that decodes a list of objects of a kind and keeps their used fields."""
    keep = functools.partial(keep_used_fields, kind)
    return lambda text: decode_list(text.decode(), keep)


def decode_nothing(text: bytes) -> Manifest:
    """Return an empty dictionary for any JSON object, because the caller reads no field.

    Raises:
        ValueError: The text is not a JSON object.
    """
    if not text.lstrip().startswith(b"{"):
        raise ValueError("the response is not a JSON object")
    return {}


def decode_list(text: str, keep: Callable[[Manifest], Manifest]) -> Manifest:
    """Decode the JSON of a list, and apply `keep` to each of its items.

    Raises:
        ValueError: The text is not a JSON object.
    """
    fields: Manifest = {}
    at = _skip(text, 0, "{")
    while True:
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at, ":")
        if name == "items" and text.startswith("[", at):
            fields[name], at = _decode_items(text, at, keep)
        else:
            fields[name], at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text.startswith("}", at):
            return fields
        at = _skip(text, at, ",")


def _decode_items(
    text: str, at: int, keep: Callable[[Manifest], Manifest]
) -> tuple[list[Manifest], int]:
    """Return the kept parts of the items in the array at a position, and the end of the array."""
    items: list[Manifest] = []
    at = _skip(text, at, "[")
    if text.startswith("]", at):
        return items, at + 1
    while True:
        item, at = _DECODER.raw_decode(text, at)
        items.append(keep(item))
        at = _skip(text, at)
        if text.startswith("]", at):
            return items, at + 1
        at = _skip(text, at, ",")


def _skip(text: str, at: int, mark: str = "") -> int:
    """Return the position after an expected character and the white space around it."""
    at = _end_of_space(text, at)
    if not text.startswith(mark, at):
        raise json.JSONDecodeError(f"expecting {mark!r}", text, at)
    return _end_of_space(text, at + len(mark)) if mark else at


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
