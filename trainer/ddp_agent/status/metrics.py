"""Metrics of one worker pod, built from the agent status at the time of a scrape.

Process: agent (threads of the HTTP server).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from prometheus_client import Metric
from prometheus_client.registry import Collector

from ddp_agent.config import AgentConfig
from ddp_agent.status.gpus import Gpu
from ddp_wire import machine
from ddp_wire.exposition import Samples
from ddp_wire.families import UPDATE_SECONDS_BUCKETS, Family, Kind
from ddp_wire.messages import (
    LOSS_PARTS,
    METRICS,
    AgentStatus,
    Heartbeat,
    LocalHeartbeat,
    Progress,
    RankTimes,
)

_JOB = ("ddpjob",)
_NODE = ("ddpjob", "node_index")
_RANK = ("ddpjob", "rank")
_GPU = ("ddpjob", "node_index", "gpu")
_LONGEST_NAME = 64

INFO = Family(
    "ddp_agent_info", Kind.GAUGE, "Attempt and phase of the node, as labels. Always 1.",
    (*_NODE, "attempt", "phase"),
)  # fmt: skip
THROTTLED = Family(
    "ddp_agent_cpu_throttled_seconds_total", Kind.COUNTER,
    "Time for which the CPU quota throttled the worker container.", _NODE,
)  # fmt: skip
MEMORY = Family(
    "ddp_agent_memory_bytes", Kind.GAUGE,
    "Memory of the worker container, without page cache that the kernel can drop.", _NODE,
)  # fmt: skip
OOM_KILLS = Family(
    "ddp_agent_oom_kills_total", Kind.COUNTER,
    "Processes of the worker container that the kernel killed at its memory limit.", _NODE,
)  # fmt: skip
HEARTBEAT = Family(
    "ddp_train_heartbeat_timestamp_seconds", Kind.GAUGE,
    "Time of the rank's newest heartbeat. Heartbeats of a stuck rank stop.", _RANK,
)  # fmt: skip
STEP = Family("ddp_train_step", Kind.GAUGE, "Completed updates of the run, by rank.", _RANK)
UPDATE_DURATION = Family(
    "ddp_train_update_duration_seconds", Kind.HISTOGRAM,
    "Durations of the updates of all ranks of the node, without evaluations and checkpoints.",
    _NODE, UPDATE_SECONDS_BUCKETS,
)  # fmt: skip
UPDATES = Family(
    "ddp_train_updates_total", Kind.COUNTER,
    "Updates of the rank whose duration was measured. It starts again with each attempt.", _RANK,
)  # fmt: skip
UPDATE_SECONDS = Family(
    "ddp_train_update_seconds_total",
    Kind.COUNTER,
    "Duration of the updates that ddp_train_updates_total counts.",
    _RANK,
)
DATA_WAIT = Family(
    "ddp_train_data_wait_seconds_total", Kind.COUNTER,
    "Time in which the rank waited for a batch. ddp_train_update_seconds_total includes it.",
    _RANK,
)  # fmt: skip
CHECKPOINT_SECONDS = Family(
    "ddp_train_checkpoint_seconds_total", Kind.COUNTER,
    "Time in which training waited for checkpoints.", _RANK,
)  # fmt: skip
EVALUATION_SECONDS = Family(
    "ddp_train_evaluation_seconds_total", Kind.COUNTER, "Duration of the evaluations.", _RANK
)
PHASE_SECONDS = Family(
    "ddp_train_phase_seconds", Kind.GAUGE,
    "Duration of each phase of the newest measured update.", (*_RANK, "phase"),
)  # fmt: skip
RANK_CPU = Family(
    "ddp_train_cpu_seconds_total", Kind.COUNTER, "CPU time of the rank's process.", _RANK
)
RANK_GPU_MEMORY = Family(
    "ddp_train_gpu_memory_allocated_bytes", Kind.GAUGE,
    "GPU memory that the rank's tensors use.", _RANK,
)  # fmt: skip
TOTAL_STEPS = Family("ddp_train_total_steps", Kind.GAUGE, "Updates of the whole run.", _JOB)
EPOCH = Family("ddp_train_epoch", Kind.GAUGE, "Current pass over the training data.", _JOB)
LOSS = Family("ddp_train_loss", Kind.GAUGE, "Newest mean training loss.", _JOB)
LOSS_PART = Family(
    "ddp_train_loss_part", Kind.GAUGE, "Newest mean of each named part of the training loss.",
    (*_JOB, "part"),
)  # fmt: skip
LEARNING_RATE = Family("ddp_train_learning_rate", Kind.GAUGE, "Newest learning rate.", _JOB)
GRAD_NORM = Family("ddp_train_grad_norm", Kind.GAUGE, "Norm of the newest gradient.", _JOB)
ALLREDUCE = Family(
    "ddp_train_allreduce_seconds", Kind.GAUGE,
    "Duration of the all-reduce of the gradients in the newest update that DDP measured on rank 0."
    " Absent with the strategy fsdp2.", _JOB,
)  # fmt: skip
ALLREDUCE_OVERLAP = Family(
    "ddp_train_allreduce_overlap_seconds", Kind.GAUGE,
    "Part of ddp_train_allreduce_seconds in which the backward pass still computed.", _JOB,
)  # fmt: skip
THROUGHPUT = Family(
    "ddp_train_samples_per_second", Kind.GAUGE,
    "Newest throughput of all ranks together, in samples per second.", _JOB,
)  # fmt: skip
ETA = Family("ddp_train_eta_seconds", Kind.GAUGE, "Estimated time until the end of the run.", _JOB)
EVALUATION = Family(
    "ddp_train_evaluation", Kind.GAUGE,
    "Results of the newest evaluation, at most 32.", (*_JOB, "metric"),
)  # fmt: skip
CHECKPOINT_STEP = Family(
    "ddp_train_checkpoint_step", Kind.GAUGE, "Updates in the newest committed checkpoint.", _JOB
)
CHECKPOINT_TIME = Family(
    "ddp_train_checkpoint_timestamp_seconds", Kind.GAUGE,
    "Time of the newest committed checkpoint.", _JOB,
)  # fmt: skip
CHECKPOINT_INTERVAL = Family(
    "ddp_train_checkpoint_interval_seconds", Kind.GAUGE,
    "Time between two checkpoints, as the job sets it or the trainer chose it. Absent if no clock"
    " decides, and before the first checkpoint.", _JOB,
)  # fmt: skip
CHECKPOINT_UNWRITTEN = Family(
    "ddp_train_checkpoint_unwritten_seconds", Kind.GAUGE,
    "Age of the checkpoint that is being written in the background. 0 if the newest is written.",
    _JOB,
)  # fmt: skip
MIRROR_STEP = Family(
    "ddp_train_mirror_step", Kind.GAUGE,
    "Updates in the newest checkpoint that checkpoint.mirror has copied.", _JOB,
)  # fmt: skip
MIRROR_BEHIND = Family(
    "ddp_train_mirror_behind_seconds", Kind.GAUGE,
    "Age of the oldest checkpoint that checkpoint.mirror has not copied yet. 0 if all are copied.",
    _JOB,
)  # fmt: skip
GPU_USE = Family(
    "ddp_gpu_utilization_ratio", Kind.GAUGE,
    "Part of the time, from 0 to 1, in which the GPU computed.", _GPU,
)  # fmt: skip
GPU_MEMORY = Family("ddp_gpu_memory_used_bytes", Kind.GAUGE, "Used memory of the GPU.", _GPU)
GPU_MEMORY_SIZE = Family("ddp_gpu_memory_bytes", Kind.GAUGE, "Memory of the GPU.", _GPU)
GPU_TEMPERATURE = Family("ddp_gpu_temperature_celsius", Kind.GAUGE, "Temperature of the GPU.", _GPU)
GPU_POWER = Family("ddp_gpu_power_watts", Kind.GAUGE, "Electric power of the GPU.", _GPU)
GPU_ECC = Family(
    "ddp_gpu_ecc_errors_total", Kind.COUNTER,
    "Uncorrected memory errors of the GPU since the driver was loaded.", _GPU,
)  # fmt: skip
GPU_XID = Family(
    "ddp_gpu_xid_errors_total", Kind.COUNTER,
    "XID errors that the driver reported since the agent started. Numbers above 255 are `other`.",
    (*_GPU, "xid"),
)  # fmt: skip

FAMILIES = (
    INFO, THROTTLED, MEMORY, OOM_KILLS, HEARTBEAT, STEP, UPDATE_DURATION, UPDATES, UPDATE_SECONDS,
    DATA_WAIT, CHECKPOINT_SECONDS, EVALUATION_SECONDS, PHASE_SECONDS, RANK_CPU, RANK_GPU_MEMORY,
    TOTAL_STEPS, EPOCH, LOSS, LOSS_PART, LEARNING_RATE, GRAD_NORM, ALLREDUCE, ALLREDUCE_OVERLAP,
    THROUGHPUT, ETA, EVALUATION,
    CHECKPOINT_STEP, CHECKPOINT_TIME, CHECKPOINT_INTERVAL, CHECKPOINT_UNWRITTEN, MIRROR_STEP,
    MIRROR_BEHIND,
    GPU_USE, GPU_MEMORY, GPU_MEMORY_SIZE, GPU_TEMPERATURE,
    GPU_POWER, GPU_ECC, GPU_XID,
)  # fmt: skip
"""Declarations of all metrics of the agent."""


class AgentCollector(Collector):
    """Collector of the metrics of one worker pod."""

    def __init__(
        self,
        config: AgentConfig,
        status: Callable[[], AgentStatus],
        gpus: Callable[[], Sequence[Gpu]],
    ) -> None:
        """Create a collector.

        Args:
            config: Configuration of the agent.
            status: Function that returns the current agent status.
            gpus: Function that returns the state of the pod's GPUs.
        """
        self._config, self._status, self._gpus = config, status, gpus

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics."""
        samples, status, config = Samples(FAMILIES), self._status(), self._config
        job, node = config.job_name, config.node_index
        samples.add(INFO, 1, job, node, status.attempt, status.phase)
        samples.add(THROTTLED, machine.throttled_seconds(), job, node)
        samples.add(MEMORY, machine.memory_bytes(), job, node)
        samples.add(OOM_KILLS, machine.out_of_memory_kills(), job, node)
        heartbeats = _local(status.ranks, config.procs_per_node)
        for heartbeat in heartbeats:
            _add_rank(samples, job, heartbeat)
        measured = [times for one in heartbeats if (times := _times(one)) and times.updates]
        _add_durations(samples, measured, job, node)
        if status.progress is not None:
            _add_progress(samples, job, status.progress)
        if status.checkpoint is not None:
            samples.add(CHECKPOINT_STEP, status.checkpoint.step, job)
            samples.add(CHECKPOINT_TIME, status.checkpoint.at, job)
            samples.add(CHECKPOINT_INTERVAL, status.checkpoint.interval_seconds, job)
        for gpu in self._gpus():
            _add_gpu(samples, gpu, job, node)
        return samples.metrics()


def _local(heartbeats: Sequence[Heartbeat], ranks: int) -> list[Heartbeat]:
    """Return at most one heartbeat per local rank, because a program may write any file."""
    by_rank = {one.local_rank: one for one in heartbeats if 0 <= one.local_rank < ranks}
    return list({one.rank: one for one in by_rank.values()}.values())


def _times(heartbeat: Heartbeat) -> RankTimes | None:
    return heartbeat.times if isinstance(heartbeat, LocalHeartbeat) else None


def _add_rank(samples: Samples, job: str, heartbeat: Heartbeat) -> None:
    rank, times = heartbeat.rank, _times(heartbeat)
    samples.add(HEARTBEAT, heartbeat.at, job, rank)
    samples.add(STEP, heartbeat.step, job, rank)
    if times is None:
        return
    samples.add(UPDATES, sum(times.updates), job, rank)
    samples.add(UPDATE_SECONDS, times.update_seconds, job, rank)
    samples.add(DATA_WAIT, times.data_wait_seconds, job, rank)
    samples.add(CHECKPOINT_SECONDS, times.checkpoint_seconds, job, rank)
    samples.add(EVALUATION_SECONDS, times.evaluation_seconds, job, rank)
    samples.add(RANK_CPU, times.cpu_seconds, job, rank)
    samples.add(RANK_GPU_MEMORY, times.memory_bytes, job, rank)
    for phase, seconds in times.phase_seconds.items():
        samples.add(PHASE_SECONDS, seconds, job, rank, phase[:_LONGEST_NAME])


def _add_durations(samples: Samples, measured: Sequence[RankTimes], job: str, node: int) -> None:
    """Add a histogram of the update times of all ranks of the node."""
    complete = [one for one in measured if len(one.updates) == len(UPDATE_SECONDS_BUCKETS) + 1]
    if complete:
        counts = [sum(same) for same in zip(*(one.updates for one in complete), strict=True)]
        total = sum(one.update_seconds for one in complete)
        samples.add_histogram(UPDATE_DURATION, counts, total, job, node)


def _add_progress(samples: Samples, job: str, progress: Progress) -> None:
    samples.add(TOTAL_STEPS, progress.total_steps, job)
    samples.add(EPOCH, progress.epoch, job)
    samples.add(LOSS, progress.loss, job)
    for name, value in _bounded(progress.loss_parts or {}, LOSS_PARTS):
        samples.add(LOSS_PART, value, job, name)
    samples.add(LEARNING_RATE, progress.learning_rate, job)
    samples.add(GRAD_NORM, progress.grad_norm, job)
    samples.add(ALLREDUCE, progress.allreduce_seconds, job)
    samples.add(ALLREDUCE_OVERLAP, progress.allreduce_overlap_seconds, job)
    samples.add(THROUGHPUT, progress.samples_per_second, job)
    samples.add(ETA, progress.eta_seconds, job)
    samples.add(CHECKPOINT_UNWRITTEN, progress.checkpoint_unwritten_seconds, job)
    samples.add(MIRROR_STEP, progress.mirror_step, job)
    samples.add(MIRROR_BEHIND, progress.mirror_behind_seconds, job)
    for name, value in _bounded(progress.metrics, METRICS):
        samples.add(EVALUATION, value, job, name)


def _bounded(values: Mapping[str, float], most: int) -> Iterable[tuple[str, float]]:
    """Return the first values by name, up to a limit, because the task chooses the names."""
    named = {name[:_LONGEST_NAME]: value for name, value in sorted(values.items())}
    return islice(named.items(), most)


def _add_gpu(samples: Samples, gpu: Gpu, job: str, node: int) -> None:
    samples.add(GPU_USE, gpu.utilization, job, node, gpu.index)
    samples.add(GPU_MEMORY, gpu.memory_used, job, node, gpu.index)
    samples.add(GPU_MEMORY_SIZE, gpu.memory_size, job, node, gpu.index)
    samples.add(GPU_TEMPERATURE, gpu.temperature, job, node, gpu.index)
    samples.add(GPU_POWER, gpu.power, job, node, gpu.index)
    samples.add(GPU_ECC, gpu.ecc_errors, job, node, gpu.index)
    for xid, count in gpu.xid_errors.items():
        samples.add(GPU_XID, count, job, node, gpu.index, xid)
