"""Keep the pods of a job on one GPU product, because a mix trains at the speed of the slowest one.

A job with `gpuProduct` needs no policy, because its pods require the label of the product. Without
the field, the first pods may be placed on any product. While they agree, the operator does nothing,
so a cluster with one product is unaffected. When two placed pods differ, the operator chooses the
product of most members and records it in the status. All later pods then require this product. The
operator replaces each pod on another product before the ranks start. A member that trains already
is replaced for the next attempt.

A label of the Kubernetes nodes names the product, so an operator that may not watch nodes notices
no mix.
"""

from collections import Counter
from collections.abc import Iterable

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World

_NAMED = 3
"""Maximum number of replaced pods that a sentence names."""


def misplaced_pods(world: World) -> frozenset[str]:
    """Return the names of the living pods on another GPU product than the rest of the job."""
    return frozenset(pod.name for pod in _misplaced(world))


def with_gpu_product(world: World, status: DDPJobStatus) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status with the product of all later pods, and an Event, when two pods differ."""
    misplaced = _misplaced(world)
    if not misplaced or status.pods is None or status.pods.gpu_product is not None:
        return status, ()
    product = _product(world)
    pods = status.pods.model_copy(update={"gpu_product": product})
    event = Event(EventType.WARNING, "MixedGpuProducts", _sentence(world, product, misplaced))
    return status.model_copy(update={"pods": pods}), (event,)


def _misplaced(world: World) -> list[PodView]:
    product = _product(world)
    placed = _placed(world) if product else ()
    return [pod for pod in placed if _product_of(world, pod) != product]


def _product(world: World) -> str:
    """Return the recorded product, or else that of most members; "" if the operator knows none."""
    pods = world.job.status.pods
    if pods is None or not world.job.spec.gpus_per_node or world.job.spec.gpu_product is not None:
        return ""
    if pods.gpu_product is not None:
        return pods.gpu_product
    placed, members = _placed(world), frozenset(world.members)
    trained = [pod for pod in placed if pod.index in members] or placed
    # Of equally frequent products, the one of the first pod.
    counts = Counter(_product_of(world, pod) for pod in trained)
    return counts.most_common(1)[0][0] if counts else ""


def _placed(world: World) -> list[PodView]:
    """Return the living pods whose GPU product is known, in the order of their nodes."""
    living = (pod for pod in world.pods if not pod.terminal and not pod.deleting)
    known = [pod for pod in living if _product_of(world, pod)]
    return sorted(known, key=lambda pod: pod.index)


def _product_of(world: World, pod: PodView) -> str:
    node = world.kubernetes_nodes.get(pod.node or "")
    return node.gpu_product if node is not None else ""


def _sentence(world: World, product: str, misplaced: Iterable[PodView]) -> str:
    others, members = list(misplaced), frozenset(world.members)
    first = next(pod for pod in _placed(world) if _product_of(world, pod) == product)
    places = " and ".join(
        f"{pod.name} on {pod.node} has {_product_of(world, pod)}" for pod in (first, others[0])
    )
    more = len(others) - _NAMED
    named = ", ".join(pod.name for pod in others[:_NAMED]) + (f" and {more} more" * (more > 0))
    trains = world.has_started and any(pod.index in members for pod in others)
    when = "before the next attempt" if trains else "now"
    return (
        f"{places}, but all pods of a job must have one GPU product: the operator replaces {named}"
        f" {when} by pods that require {product}; set spec.gpuProduct to choose the product"
    )
