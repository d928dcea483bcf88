"""Send many requests with growing concurrency, as in the slow start of TCP."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def slow_start(
    requests: Iterable[Callable[[], Coroutine[Any, Any, None]]],
    *,
    first: int,
    most: Callable[[], int],
    ends: Callable[[], bool] = lambda: False,
) -> int:
    """Send all requests, unless one fails or `ends` returns True.

    Each answer permits one more concurrent request. If the API server refuses all requests, for
    example because of a quota, only `first` of them are sent. If it accepts some and refuses the
    rest, it refuses at most `most` requests.

    Args:
        requests: Functions that send one request each.
        first: Number of concurrent requests at the beginning.
        most: Function that returns the maximum number of concurrent requests, which may change.
        ends: Function that returns whether to stop sending. At least one request is sent.

    Returns:
        Number of requests that were not sent.

    Raises:
        Exception: The error of the first failed request, raised after all sent requests have ended.
    """
    waiting, running, errors = deque(requests), set[asyncio.Task[None]](), list[BaseException]()
    limit = min(first, most())
    ended = False
    try:
        while running or (waiting and not errors and not ended):
            while waiting and not errors and not ended and len(running) < min(limit, most()):
                running.add(asyncio.create_task(waiting.popleft()()))
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            errors += [error for task in done if (error := task.exception()) is not None]
            limit = min(limit + len(done), most())
            ended = ended or ends()
    finally:
        for task in running:
            task.cancel()
    if errors:
        raise errors[0]
    return len(waiting)
