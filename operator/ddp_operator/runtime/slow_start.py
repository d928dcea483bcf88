"""Concurrent requests that begin with a few, as those of TCP do."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def slow_start(
    requests: Iterable[Callable[[], Coroutine[Any, Any, None]]], *, first: int, most: int
) -> None:
    """Send all requests, unless one fails.

    Each success permits one more at a time. So if the API server refuses all, for example because
    of a quota, `first` requests find that out, and if it refuses from some point on, `most` do.

    Args:
        requests: Functions that send one request each.
        first: Number of concurrent requests at the beginning.
        most: Maximum number of concurrent requests.

    Raises:
        Exception: The error of the first request that failed, after all that were sent have ended.
    """
    waiting, running, errors = deque(requests), set[asyncio.Task[None]](), list[BaseException]()
    try:
        while running or (waiting and not errors):
            while waiting and not errors and len(running) < first:
                running.add(asyncio.create_task(waiting.popleft()()))
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            errors += [error for task in ended if (error := task.exception()) is not None]
            first = min(first + len(ended), most)
    finally:
        for task in running:
            task.cancel()
    if errors:
        raise errors[0]
