"""Find out which group objects of gang schedulers the API server serves.

The operator asks the API server at its start, because it lists and watches the kinds that exist. It
asks again with each full relist, and after a request for a kind that the API server does not serve.
The kinds change when the cluster is upgraded, or when an administrator installs or removes a
scheduler.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ddp_operator.builders.gangs.versions import Gangs, api_group, choose_version
from ddp_operator.cluster.base import ClusterError

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
"""Pause after a failed request for the served versions, in seconds."""
_SHORTEST_PAUSE_SECONDS = 10.0
"""Minimum pause between two requests for the served versions, in seconds, because each refused
request for a kind may trigger one."""


class GangApis:
    """The kinds of group objects that the API server serves."""

    def __init__(
        self, served_versions: Callable[[str], Awaitable[tuple[str, ...]]], gangs: Gangs
    ) -> None:
        """Create a source without asking the API server.

        Args:
            served_versions: Function that returns the served versions of an API group.
            gangs: Gang schedulers that the operator's settings name.
        """
        self._served_versions, self._gangs = served_versions, gangs

    async def discover(self) -> Gangs:
        """Return the gang schedulers with their served API versions. Retry on failures."""
        while True:
            try:
                self._gangs = await self._look()
            except ClusterError as error:
                _log.warning("not ready, the API groups of gangs cannot be read: %s", error)
                await asyncio.sleep(max(_RETRY_SECONDS, error.retry_after or 0.0))
            else:
                return self._gangs

    async def wait_for_change(self, asked: asyncio.Event, every: float) -> str:
        """Wait until the served group objects change. Return a message about the change.

        Args:
            asked: Event that is set when the API server does not serve a requested kind.
            every: Maximum seconds between two requests for the served versions.
        """
        while True:
            await asyncio.sleep(_SHORTEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), every)
            asked.clear()
            try:
                found = await self._look()
            except ClusterError as error:
                _log.warning("the API groups of gangs cannot be read: %s", error)
                continue
            if found != self._gangs:
                names = ", ".join(version for _, version in found.served) or "none"
                return f"the API server serves other group objects of gangs than before: {names}"

    async def _look(self) -> Gangs:
        served = []
        for gang in self._gangs.types:
            version = choose_version(gang, await self._served_versions(api_group(gang)))
            if version is not None:
                served.append((gang, version))
        return replace(self._gangs, served=tuple(served))
