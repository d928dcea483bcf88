"""Take snapshots of all served namespaces, even if some namespaces refuse the operator."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from ddp_operator.cluster.base import ClusterError, ClusterSnapshot
from ddp_operator.runtime.workers import WorkerActivity

_log = logging.getLogger(__name__)


class Snapshots:
    """Source of snapshots of the served namespaces, or of all namespaces."""

    def __init__(
        self,
        take: Callable[[str | None], Awaitable[ClusterSnapshot]],
        namespaces: Sequence[str],
        activity: WorkerActivity,
    ) -> None:
        """Create a source of snapshots.

        Args:
            take: Function that returns the snapshot of one namespace, or of all.
            namespaces: Served namespaces, or none to serve all.
            activity: Receives messages about the namespaces that refuse the operator.
        """
        self._take, self._activity = take, activity
        self._namespaces: Sequence[str | None] = namespaces or (None,)

    async def take(self) -> ClusterSnapshot:
        """Return one snapshot of all namespaces that permit it.

        Without permission to read a namespace, the operator cannot change it either. It learns of
        the jobs there once its watches are permitted.

        Raises:
            ClusterError: No namespace permits the lists, or a request failed for another reason.
        """
        parts = [self._take(one) for one in self._namespaces]
        outcomes = await asyncio.gather(*parts, return_exceptions=True)
        refused: dict[str, ClusterError] = {}
        found: list[ClusterSnapshot] = []
        for namespace, outcome in zip(self._namespaces, outcomes, strict=True):
            if isinstance(outcome, ClusterError) and outcome.status == HTTPStatus.FORBIDDEN:
                refused[namespace or ""] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                found.append(outcome)
        if not found:
            raise next(iter(refused.values()))
        self._report({name: str(error) for name, error in refused.items()})
        return ClusterSnapshot.merge(found)

    def _report(self, refused: dict[str, str]) -> None:
        """Log each namespace that begins or stops refusing the operator."""
        known = self._activity.unserved_namespaces
        for namespace, error in refused.items():
            if namespace not in known:
                _log.warning("the namespace %s is not served: %s", namespace, error)
        for namespace in known.keys() - refused.keys():
            _log.info("the namespace %s is served again", namespace)
        self._activity.unserved_namespaces = refused
