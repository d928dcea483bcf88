"""List objects in pages, because the JSON of thousands of objects would need much memory."""

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from ddp_operator.api.base import API_GROUP, KIND, PLURAL
from ddp_operator.cluster.base import ClusterError, ClusterSnapshot, Listing, Manifest
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.lists import list_decoder
from ddp_operator.cluster.kube.paths import object_path
from ddp_operator.limits import PAGE
from ddp_wire import contract

MANAGED = {"labelSelector": f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"}
"""Query that selects all objects that the operator created."""


async def list_pages(
    connection: ApiConnection, kind: str, namespace: str | None, query: Mapping[str, str]
) -> Listing:
    """Return all objects of a kind that match a query, from one namespace or from all.

    Raises:
        ClusterError: A request failed, or the list became too old between two pages.
    """
    items: list[Manifest] = []
    path = object_path(kind, namespace)
    pages = {**query, "limit": str(PAGE)}
    while True:
        page = await connection.call("GET", path, query=pages, decode=list_decoder(kind))
        items += page["items"]
        if not page["metadata"].get("continue"):
            return Listing(items, int(page["metadata"]["resourceVersion"]))
        pages["continue"] = page["metadata"]["continue"]


async def list_at_once(
    connection: ApiConnection, kind: str, namespace: str | None, query: Mapping[str, str]
) -> Listing:
    """Return objects in one answer without pages, for small lists.

    The API server can serve this answer from its cache. It reads each page from etcd.
    """
    path = object_path(kind, namespace)
    found = await connection.call("GET", path, query=query, decode=list_decoder(kind))
    return Listing(found["items"], int(found["metadata"]["resourceVersion"]))


async def take_snapshot(
    connection: ApiConnection, namespace: str | None, kinds: Iterable[str]
) -> ClusterSnapshot:
    """Return all jobs and their children of these kinds, from one namespace or from all."""
    kinds = list(kinds)
    outcomes = await asyncio.gather(
        _list_jobs(connection, namespace),
        *(list_pages(connection, kind, namespace, MANAGED) for kind in kinds),
        return_exceptions=True,
    )
    listings = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome  # In list order and not in time order, so the log repeats one error.
        listings.append(outcome)
    return ClusterSnapshot(listings[0], dict(zip(kinds, listings[1:], strict=True)))


async def _list_jobs(connection: ApiConnection, namespace: str | None) -> Listing:
    try:
        return await list_pages(connection, KIND, namespace, {})
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        message = f"the CRD {PLURAL}.{API_GROUP} is not installed"
        raise ClusterError(message, status=error.status) from error
