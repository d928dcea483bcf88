"""Read and change the progress of a job's init steps in its status."""

from datetime import datetime, timedelta

from ddp_operator.api.init import InitStatus, InitStep, init_hash
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.limits import ATTEMPT_DELAY
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World


def progress(job: DDPJob) -> InitStatus | None:
    """Return the recorded progress of the job's present init steps, or None without any."""
    recorded, steps = job.status.init, job.spec.init
    if not steps or recorded is None or recorded.spec_hash != init_hash(steps):
        return None
    return recorded


def is_due(job: DDPJob) -> bool:
    """Return whether an init step of the job has not completed yet."""
    done, steps = progress(job), job.spec.init or []
    return len(steps) > (done.completed if done is not None else 0)


def first_try(job: DDPJob, completed: int, now: datetime) -> InitStatus:
    """Return the progress in which the next step, if any is left, begins with its first try."""
    steps = job.spec.init or []
    left = completed < len(steps)
    return InitStatus(
        spec_hash=init_hash(steps),
        completed=completed,
        step=steps[completed].name if left else None,
        tries=1 if left else 0,
        start_time=now.replace(microsecond=0) if left else None,
    )


def next_try(done: InitStatus, now: datetime, message: str, *, failed: bool) -> InitStatus:
    """Return the progress with another try of the same step, after a delay of 1, 2, 4 … 300 s."""
    delay = timedelta(seconds=ATTEMPT_DELAY.after(done.tries))
    return done.model_copy(
        update={
            "tries": done.tries + 1,
            "failures": done.failures + failed,
            "start_time": (now + delay).replace(microsecond=0),
            "message": message,
        }
    )


def current_step(job: DDPJob, done: InitStatus) -> InitStep:
    """Return the step that runs, or runs next. At least one step must be left."""
    return (job.spec.init or [])[done.completed]


def current_pod(world: World, done: InitStatus) -> PodView | None:
    """Return the pod of the current try, or None if it does not exist."""
    name = names.init_pod_name(world.job, done.step or "", done.tries)
    current = (p for p in world.init_pods if p.name == name and p.spec_hash == done.spec_hash)
    return next(current, None)


def with_interrupted_try(world: World, message: str) -> DDPJobStatus:
    """Return the job's status after the current try, whose pod is about to be deleted.

    Another try follows one that runs. A step that has succeeded does not run again.
    """
    status, done = world.job.status, progress(world.job)
    pod = current_pod(world, done) if done is not None else None
    if done is None or pod is None:
        return status
    if pod.phase == "Succeeded":
        after = first_try(world.job, done.completed + 1, world.now)
    elif not pod.terminal:
        after = next_try(done, world.now, message, failed=False)
    else:
        return status
    return status.model_copy(update={"init": after})
