"""Follow the logs of several pods at once, also when a pod is replaced by another of its name."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

from ddp_operator.client.log_lines import LogLine, LogParser, in_order, split_time
from ddp_operator.cluster.errors import ClusterError

HOLD_SECONDS = 0.3
"""Seconds for which a line waits for older lines of other pods."""
RETRY_SECONDS = 0.5
"""Seconds until the log of a pod that does not run is requested again."""
_LAST_TRIES = 4
"""Maximum requests in a row that fail without a new line, after the end of the job."""


class LineStream(Protocol):
    """Lines of a log that may stay open."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines."""

    def close(self) -> None:
        """End the stream from any thread."""


OpenLog = Callable[[str, datetime | None], LineStream]
"""Function that opens the log of a pod, from a time on or from its start."""


class PodFollower:
    """Thread that reads the log of one pod, and of the pods that replace it."""

    def __init__(
        self,
        pod: str,
        open_log: OpenLog,
        put: Callable[[LogLine], None],
        is_over: Callable[[], bool],
        since: datetime | None,
    ) -> None:
        """Start reading.

        Args:
            pod: Name of the pod.
            open_log: Function that opens its log.
            put: Function that takes each line.
            is_over: Function that returns whether the job is over, so that no pod follows.
            since: Time of the first line.
        """
        self._pod, self._open, self._put, self._is_over = pod, open_log, put, is_over
        self._since = since
        self._newest: Counter[bytes] = Counter()
        """Lines of the newest second, which a repeated request returns again."""
        self._second: datetime | None = None
        self._parser = LogParser(pod)
        self._passed = 0
        """Number of lines that were passed on."""
        self._stream: LineStream | None = None
        self._stopped = threading.Event()
        self.problem: ClusterError | None = None
        """Why the log cannot be read."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Return whether no line will follow."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()
        if (stream := self._stream) is not None:
            stream.close()

    def _run(self) -> None:
        tries = 0
        while not self._stopped.is_set():
            over = self._is_over()  # Before the request, so that no line is missed.
            passed = self._passed
            failed = self._request()
            tries = tries + 1 if over and self._passed == passed else 0
            if over and (not failed or tries >= _LAST_TRIES):
                return
            self._stopped.wait(RETRY_SECONDS * 2**tries)

    def _request(self) -> bool:
        """Read the log to its end. Return whether another request may return more lines."""
        try:
            self._stream = self._open(self._pod, self._second or self._since)
            self._read(self._stream)
        except ClusterError as error:
            # A pod that is gone after its log was read has no problem.
            if error.status != HTTPStatus.NOT_FOUND or self._stream is None:
                self.problem = error
            return not error.status or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self.problem = None
        return False

    def _read(self, stream: LineStream) -> None:
        """Pass on the lines that an earlier request has not returned.

        Raises:
            ClusterError: The connection broke.
        """
        known, self._newest = self._newest, Counter()
        begin = self._second
        try:
            for raw in stream:
                second = _second(raw)
                if second is not None and second != self._second:
                    self._second, self._newest = second, Counter()
                self._newest[raw] += 1
                if known[raw] > 0:
                    known[raw] -= 1
                else:
                    self._put(self._parser.parse(raw))
                    self._passed += 1
                if self._stopped.is_set():
                    return
        finally:
            if self._second == begin:  # The rest may come with the next request.
                self._newest += known


def _second(raw: bytes) -> datetime | None:
    time_of, _ = split_time(raw)
    return time_of.replace(microsecond=0) if time_of is not None else None


class JobFollower:
    """The lines of all pods of a job, in the order of their times, while they are written."""

    def __init__(
        self,
        open_log: OpenLog,
        list_pods: Callable[[], list[str]],
        is_over: Callable[[], bool],
        since: datetime | None = None,
    ) -> None:
        self._open, self._list_pods, self._job_is_over = open_log, list_pods, is_over
        self._since = since
        self._lines: queue.SimpleQueue[tuple[float, LogLine]] = queue.SimpleQueue()
        self._followers: dict[str, PodFollower] = {}
        self._over = threading.Event()
        self.problems: dict[str, ClusterError] = {}
        """Why the log of a pod could not be read, by pod."""

    def __iter__(self) -> Iterator[LogLine]:
        """Yield lines until the job is over and all logs have ended."""
        held: list[tuple[float, LogLine]] = []
        looked = 0.0
        try:
            while True:
                if time.monotonic() >= looked + RETRY_SECONDS:
                    self._look()
                    looked = time.monotonic()
                ended = self._over.is_set() and all(f.ended for f in self._followers.values())
                held += self._taken()
                limit = time.monotonic() - (0 if ended else HOLD_SECONDS)
                ready = [line for at, line in held if at <= limit]
                held = [(at, line) for at, line in held if at > limit]
                yield from in_order(ready)
                if ended and not held:
                    break
        finally:
            for pod, follower in self._followers.items():
                follower.stop()
                if follower.problem is not None:
                    self.problems[pod] = follower.problem

    def _look(self) -> None:
        """Follow new pods, and notice the end of the job."""
        if self._job_is_over():
            self._over.set()
        for pod in self._list_pods():
            if pod not in self._followers:
                self._followers[pod] = PodFollower(
                    pod, self._open, self._put, self._over.is_set, self._since
                )

    def _put(self, line: LogLine) -> None:
        self._lines.put((time.monotonic(), line))

    def _taken(self) -> list[tuple[float, LogLine]]:
        """Return all lines that have arrived. Wait briefly for the first one."""
        found = []
        try:
            found.append(self._lines.get(timeout=HOLD_SECONDS / 3))
            while True:
                found.append(self._lines.get_nowait())
        except queue.Empty:
            return found
