"""Add each job that has ended to the list of finished jobs of its namespace."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, Self

from ddp_operator.api.finished import CONFIG_MAP, LABELS, add_finished, read_finished
from ddp_operator.api.job import DDPJob
from ddp_operator.api.summary import JobSummary, summarize
from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_operator.limits import FINISHED_JOBS

_log = logging.getLogger(__name__)


class ConfigMaps(Protocol):
    """Access to ConfigMaps."""

    async def read_config_map(self, namespace: str, name: str) -> Manifest | None:
        """Return the ConfigMap, or None if it does not exist.

        Raises:
            ClusterError: The API server refused the request.
        """

    async def patch_config_map(
        self, namespace: str, name: str, labels: Mapping[str, str], patch: Mapping[str, Any]
    ) -> None:
        """Apply a merge patch to the data of the ConfigMap. Create it if it does not exist.

        Raises:
            ClusterError: The API server refused the request.
        """


class _KnownList(NamedTuple):
    """What is known about the list of one namespace."""

    uids: frozenset[str]
    """Uids of the jobs in the list."""
    oldest: datetime | None
    """End of the oldest job in a full list, or None if there is room."""

    @classmethod
    def of(cls, jobs: Sequence[JobSummary]) -> Self:
        """Return what is known about a list, newest first."""
        oldest = jobs[-1].completion_time if len(jobs) >= FINISHED_JOBS else None
        return cls(frozenset(one.uid for one in jobs), oldest)

    def needs_no(self, summary: JobSummary) -> bool:
        """Return whether the list has a job, or is full of jobs that ended later."""
        if summary.uid in self.uids:
            return True
        end = summary.completion_time
        return self.oldest is not None and end is not None and end < self.oldest


class FinishedJobs:
    """Writer of the lists of all namespaces. All workers share one instance."""

    def __init__(self, config_maps: ConfigMaps) -> None:
        """Create a writer that has read no list yet."""
        self._config_maps = config_maps
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._known: dict[str, _KnownList] = {}
        """What the lists contained when they were last read, by namespace. It only saves reads."""
        self._refused: set[str] = set()
        """Namespaces whose refusal was logged."""

    async def record(self, job: DDPJob) -> bool:
        """Add a job that has ended to the list of its namespace, unless the list has it.

        Returns:
            Whether the list has the job, or is full of newer ones. Otherwise call it again later.
            A list that cannot be written must not keep the operator from cleaning up the job.
        """
        namespace, summary = job.metadata.namespace, summarize(job)
        # Jobs of one namespace that end together would overwrite each other's removals.
        async with self._locks[namespace]:
            known = self._known.get(namespace)
            if known is not None and known.needs_no(summary):
                return True
            try:
                await self._add(namespace, summary)
            except ClusterError as error:
                if namespace not in self._refused:
                    self._refused.add(namespace)
                    _log.warning("%s of %s was not written: %s", CONFIG_MAP, namespace, error)
                return False
            self._refused.discard(namespace)
            return True

    async def _add(self, namespace: str, summary: JobSummary) -> None:
        found = await self._config_maps.read_config_map(namespace, CONFIG_MAP)
        patch = add_finished(found, summary)
        if patch is not None:
            await self._config_maps.patch_config_map(namespace, CONFIG_MAP, LABELS, patch)
            data = (found or {}).get("data") or {}
            merged = {**data, **patch.get("data", {})}
            found = {"data": {uid: text for uid, text in merged.items() if text is not None}}
        self._known[namespace] = _KnownList.of(read_finished(found))
