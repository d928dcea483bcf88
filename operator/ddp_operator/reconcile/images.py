"""Pin images by digest: a replaced pod runs its peers' image even if the tag has moved."""

from collections.abc import Iterable

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.image_names import has_digest, repository
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.pod_view import PodView


def pinned_image(job: DDPJob, image: str, pods: Iterable[PodView]) -> str | None:
    """Return the image by digest for a new pod of an attempt, or None to use the tag.

    Args:
        job: The job, with the status of the attempt.
        image: Image that all pods of the attempt share.
        pods: Pods of the job. Living pods with the same spec are the peers of the new pod.
    """
    if has_digest(image):
        return None
    found = (p for p in _peers(job, pods) if repository(p.image or "") == repository(image))
    first = min(found, key=lambda pod: pod.index, default=None)
    return first.image_by_digest if first else None


def mixed_image_events(job: DDPJob, pods: Iterable[PodView]) -> tuple[Event, ...]:
    """Return the Event about pods of one attempt that run different images, if any."""
    peers = _peers(job, pods)
    if len({pod.image_by_digest for pod in peers}) < 2:  # noqa: PLR2004 - two are a mixture
        return ()
    first: dict[str | None, str] = {}
    for pod in sorted(peers, key=lambda pod: pod.index):
        first.setdefault(pod.image_by_digest, pod.name)
    listed = ", ".join(f"{name} runs {image}" for image, name in list(first.items())[:3])
    text = (
        f"the pods of attempt {job.status.attempt} run different images, because a tag has moved or"
        f" a Kubernetes node holds an older image: {listed}; name the image by its digest"
    )
    return (Event(EventType.WARNING, "MixedImages", text),)


def _peers(job: DDPJob, pods: Iterable[PodView]) -> list[PodView]:
    """Return the living pods of the current spec whose image digest is known."""
    living = (pod for pod in pods if not pod.terminal and not pod.deleting)
    return [p for p in living if p.image_by_digest and p.spec_hash == job.spec_hash]
