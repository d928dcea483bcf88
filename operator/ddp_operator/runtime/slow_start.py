"""Send many requests, few of them at first, as in the slow start of TCP."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def slow_start(
    requests: Iterable[Callable[[], Coroutine[Any, Any, None]]], *, first: int, most: int
) -> None:
    """Send all requests, unless one fails.

    Each answer permits one more request at the same time. If the API server refuses all requests,
    for example because of a quota, it gets `first` of them. If it accepts some and refuses the
    rest, it refuses at most `most`.

    Args:
        requests: Functions that send one request each.
        first: Number of concurrent requests at the beginning.
        most: Maximum number of concurrent requests.

    Raises:
        Exception: The error of the first request that failed, after all that were sent have ended.
    """
    waiting, running, errors = deque(requests), set[asyncio.Task[None]](), list[BaseException]()
    limit = min(first, most)
    try:
        while running or (waiting and not errors):
            while waiting and not errors and len(running) < limit:
                running.add(asyncio.create_task(waiting.popleft()()))
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            errors += [error for task in ended if (error := task.exception()) is not None]
            limit = min(limit + len(ended), most)
    finally:
        for task in running:
            task.cancel()
    if errors:
        raise errors[0]
