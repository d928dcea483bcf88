"""Explain in one paragraph why a job is in its state, what to do, and with which command."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, FailureStatus
from ddp_operator.report.rows import message_of, state_of, time_left
from ddp_wire.durations import duration_text

LOCAL = (" --local", " --dir ")
"""Beginnings of the options that select the runs of this machine."""


@dataclass(frozen=True)
class Why:
    """The answer of `ddpjob why`."""

    problem: bool
    """Whether a person should act."""
    what: str
    """What happens, or what is wrong, as one or two sentences."""
    advice: str
    """What to do, as one sentence."""
    command: str = ""
    """Command that helps, or empty."""

    @property
    def paragraph(self) -> str:
        """Return all parts as one paragraph."""
        return " ".join(filter(None, (self.what, self.advice)))


_WAITING = {
    "Unschedulable": "No Kubernetes node has room: free or add nodes, or request less.",
    "SchedulingGated": "A queue holds the pods: the job starts when the queue admits it.",
    "ErrImagePull": "Correct spec.image or spec.imagePullSecrets.",
    "ImagePullBackOff": "Correct spec.image or spec.imagePullSecrets.",
    "InvalidImageName": "Correct spec.image.",
    "CreateContainerConfigError": "Create the Secret or ConfigMap that the message names.",
    "QuotaExceeded": "Raise the quota of the namespace, or wait until other pods have ended.",
    "AdmissionRejected": "A policy of the cluster refuses the pods: change the field it names.",
    "WebhookFailed": "A webhook of the cluster does not answer: tell who runs the cluster.",
    "NotPermitted": "The operator lacks a right: tell who runs the cluster.",
    "NameConflict": "Create the job under another name.",
    "InvalidPod": "Correct the field of the spec that the message names.",
    "CheckpointPathInUse": (
        "Wait until the other job has ended, delete it, or change spec.checkpoint.path."
    ),
}
"""Advice by reason of the condition PodsReady, for a job whose pods do not run."""
_FAILED = {
    "BadInput": "Correct the setting that the message names, and create the job again.",
    "OOMKilled": "Raise spec.resources.limits.memory, or lower the batch of a rank.",
    "VolumeFailed": "Make room on the volume, or repair it.",
    "Hung": "The stack shows where the rank stood. If it only was slow, raise the limit in"
    " spec.hang.",
    "SilentCorruption": "Test the Kubernetes node before you use it again.",
    "NetworkFailed": "Check that pods of the job may reach each other.",
    "InitFailed": "Correct the step of spec.init.",
    "InitContainerFailed": "Correct the init container of spec.podTemplate.",
    "StartError": "Correct spec.command, or repair the Kubernetes node that the message names.",
    "Evicted": "The Kubernetes node had too little memory or disk: request what the job needs.",
}
"""Advice by reason of the last failure, for a job that failed or recovers."""


def explain(job: DDPJob, *, options: str = "") -> Why:
    """Return why a job is in its state.

    Args:
        job: The job with its status.
        options: Options that select the job's cluster or folder in a command: ` -n team-a`.
    """
    state = state_of(job)
    if not job.status.conditions:
        return _without_status(job, options)
    return _STATES.get(state, _other)(job, options)


def _without_status(job: DDPJob, options: str) -> Why:
    if job.spec.managed_by is not None and job.status.observed_generation is None:
        what = f"{job.metadata.name} has no status: spec.managedBy names {job.spec.managed_by}."
        return Why(True, what, "That controller runs the job; look at its state.")
    what = f"{job.metadata.name} has no status yet: no operator has seen it."
    advice = "If this lasts, the operator does not run or does not watch this namespace."
    return Why(True, what, advice, f"ddpjob events {job.metadata.name}{options}")


def _completed(job: DDPJob, options: str) -> Why:
    what = f"{job.metadata.name} is completed: {message_of(job)}."
    saved = job.status.last_checkpoint
    if saved is not None:
        what += f" Its checkpoint of update {saved.step:,} is in {saved.path}."
    return Why(False, what, "There is nothing to do.", _command("report", job, options))


def _failed(job: DDPJob, options: str) -> Why:
    failure = job.status.last_failure
    what = f"{job.metadata.name} has failed: {message_of(job)}."
    if failure is None:
        return Why(True, what, "Correct the cause, then delete the job and create it again.")
    advice = _FAILED.get(failure.reason) or "Correct the cause, and create the job again."
    if "maxRestarts is" in what and failure.reason not in _FAILED:
        advice = "The program itself fails: its output shows why."
    return Why(True, what + _last_line(failure), advice, _logs_of(failure, job, options))


def _invalid(job: DDPJob, options: str) -> Why:
    what = f"{job.metadata.name} cannot run: {message_of(job)}."
    if options.startswith(LOCAL):
        return Why(True, what, "Correct the manifest, and run it again.")
    edit = f"kubectl edit ddpjob {_at(job)}"
    return Why(True, what, "Edit the job; it starts then.", edit)


def _suspended(job: DDPJob, options: str) -> Why:
    saved = job.status.last_checkpoint
    where = f" at update {saved.step:,}" if saved is not None else " at update 0"
    what = f"{job.metadata.name} is suspended and uses no pods."
    advice = f"It goes on{where} when you resume it."
    return Why(False, what, advice, _command("resume", job, options))


def _pending(job: DDPJob, options: str) -> Why:
    what = f"{job.metadata.name} waits: {_message(job)}."
    claim = job.status.condition(ConditionType.CLAIM_BOUND)
    if claim is not None and claim.status == "False":
        advice = "Check the storage class, its access modes and the quota of the claim."
        return Why(True, what, advice, _command("events", job, options))
    pods = job.status.condition(ConditionType.PODS_READY)
    advice = _WAITING.get(pods.reason, "") if pods is not None else ""
    if not advice:
        return Why(False, what, "Pods are starting; wait.", _command("watch", job, options))
    waits = pods is not None and pods.reason == "SchedulingGated"
    return Why(not waits, what, advice, _command("events", job, options))


def _starting(job: DDPJob, options: str) -> Why:
    what = f"{job.metadata.name} is starting: {_message(job)}."
    if "cannot reach" in what:
        advice = "A NetworkPolicy or the network separates the pods: allow traffic among them."
        return Why(True, what, advice, _command("logs", job, options))
    advice = "If this lasts, the output of the pods shows what they wait for."
    return Why(False, what, advice, _command("logs", job, options))


def _recovering(job: DDPJob, options: str) -> Why:
    status, failure = job.status, job.status.last_failure
    what = f"{job.metadata.name} recovers: {_message(job)}."
    if failure is None:
        return Why(False, what, "The next attempt starts by itself.")
    advice = "The next attempt starts by itself."
    repeated = status.attempts_without_progress > 1
    if repeated:
        advice = f"{status.attempts_without_progress} attempts in a row made no progress. " + (
            _FAILED.get(failure.reason) or "Correct the cause, or the job will fail."
        )
    return Why(repeated, what + _last_line(failure), advice, _logs_of(failure, job, options))


def _running(job: DDPJob, options: str) -> Why:
    status, name = job.status, job.metadata.name
    if status.suspect is not None:
        one = status.suspect
        what = f"{name} makes no progress: rank {one.rank} in {one.pod}: {one.message}."
        advice = "spec.hang limits how long this may last; then the ranks restart."
        return Why(True, what, advice, f"ddpjob logs {name}{options} --rank {one.rank}")
    if status.straggler is not None:
        slow = status.straggler
        place = f"{slow.pod} on {slow.node}" if slow.node else slow.pod
        what = (
            f"{name} runs, but all ranks wait for rank {slow.rank} ({place}): it needs {slow.ratio}"
            f" times as long as the others for its {slow.part}."
        )
        cause = "its data loading" if slow.part == "data" else "that Kubernetes node and its GPU"
        return Why(True, what, f"Check {cause}.", _command("status", job, options))
    left = time_left(job)
    what = f"{name} runs: {message_of(job)}." + (f" About {left} are left." if left else "")
    if status.is_true(ConditionType.PODS_READY) or job.spec.elastic is None:
        return Why(False, what, "Nothing is wrong.", _command("watch", job, options))
    advice = "It trains without some nodes, and takes them in when they are free."
    return Why(False, what, advice, _command("events", job, options))


def _other(job: DDPJob, options: str) -> Why:
    what = f"{job.metadata.name} is {state_of(job)}: {message_of(job)}."
    return Why(False, what, "", _command("status", job, options))


_STATES: dict[str, Callable[[DDPJob, str], Why]] = {
    "Completed": _completed,
    "Failed": _failed,
    "Invalid": _invalid,
    "Suspended": _suspended,
    "Pending": _pending,
    "Starting": _starting,
    "Recovering": _recovering,
    "Running": _running,
}


def _command(verb: str, job: DDPJob, options: str) -> str:
    return f"ddpjob {verb} {job.metadata.name}{options}"


def _at(job: DDPJob) -> str:
    return f"{job.metadata.name} -n {job.metadata.namespace}"


def _message(job: DDPJob) -> str:
    """Return MESSAGE, or what the operator does next if MESSAGE is empty."""
    return (message_of(job) or job.status.next_action or "no reason is known yet").rstrip(".")


def _last_line(failure: FailureStatus) -> str:
    """Return the last line of the traceback as a sentence, if the message does not contain it."""
    lines = (failure.traceback or "").strip().splitlines()
    if not lines or lines[-1].strip() in failure.message:
        return ""
    return f" Its traceback ends with: {lines[-1].strip()}."


def _logs_of(failure: FailureStatus, job: DDPJob, options: str) -> str:
    """Return the command that shows the output of the failed rank."""
    rank = f" --rank {failure.rank}" if failure.rank is not None else ""
    return f"{_command('logs', job, options)} --attempt {failure.attempt}{rank}"


def since_text(seconds: float) -> str:
    """Return how long ago something was, as words."""
    return "just now" if seconds < 1 else f"{duration_text(seconds)} ago"
