"""Settings of a whole run, and of its data, checkpoints and logs."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ddp_trainer.config.addresses import check_url, is_url
from ddp_trainer.config.learning import (
    EmaConfig,
    NonFiniteConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from ddp_trainer.config.parallel import ParallelConfig, ReplicasConfig
from ddp_trainer.config.section import Section, no_effect
from ddp_trainer.errors import InputError

Precision = Literal["auto", "fp64", "fp32", "tf32", "bf16", "fp16"]
TrackerName = Literal["tensorboard", "mlflow", "wandb"]
Device = Literal["auto", "cpu", "cuda"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]


class DataConfig(Section):
    """Settings of data loading."""

    shuffle: bool = True
    """Whether to shuffle the training data in every epoch."""
    drop_last: bool = False
    """Whether to skip the last batch of each epoch if it is smaller than global_batch."""
    workers: NonNegativeInt | Literal["auto"] | None = "auto"
    """Number of worker processes per rank that load batches. 0 loads them in the rank's own
    process. null derives the number from the container's CPU quota. auto does the same on CUDA if a
    batch takes long to prepare, and otherwise is 0."""
    prefetch: PositiveInt = 2
    """Number of batches that each worker process loads ahead."""
    persistent_workers: bool = True
    """Whether evaluations reuse the same worker processes."""
    pin_memory: bool = True
    """Whether batches for CUDA are loaded into pinned memory, for asynchronous copies."""
    eval_batch: PositiveInt | None = None
    """Samples per rank in one evaluation step. Default: the micro-batch of training."""


class CheckpointConfig(Section):
    """Settings of checkpoints.

    If no interval is set, the trainer saves after every epoch and at an interval that it chooses.
    The trainer always saves at the end of the run.
    """

    directory: str | None = None
    """Directory of this run's checkpoints, on a persistent volume. Default: no checkpoints."""
    every_steps: PositiveInt | None = None
    """Updates between two checkpoints. Default: checkpoint.every_seconds decides."""
    every_seconds: PositiveInt | Literal["auto"] | None = "auto"
    """Seconds between two checkpoints. auto chooses 30 to 3600 from the measured cost of a save and
    the failures of the run, and also saves after each epoch; with every_steps it has no effect.
    null saves after each epoch only."""
    keep: PositiveInt = 3
    """Number of newest checkpoints to keep."""
    keep_every_steps: PositiveInt | None = None
    """Keep also the first checkpoint at or after each multiple of this number of updates. Default:
    none."""
    keep_best: str | None = None
    """Metric of the evaluation, for example loss. Each evaluation with a better value than all
    before is saved, and the best checkpoint is kept. Default: none."""
    keep_best_mode: Literal["min", "max"] = "min"
    """Whether the lowest (min) or the highest (max) value of keep_best is the best."""
    start_over: bool = False
    """Whether to train from the beginning if checkpoints exist but none is usable. The unusable
    checkpoints are moved to a folder set-aside-N. Otherwise the run ends with an error."""
    part_mb: PositiveFloat = 64.0
    """Size in MiB up to which rank 0 writes a checkpoint alone. The ranks divide the write of a
    larger one, if all of them can write to the directory."""
    background: bool | Literal["auto"] = "auto"
    """Whether training goes on while a checkpoint is written: each rank copies its part to memory,
    and a process of its node writes it. auto does so if the checkpoint is larger than part_mb, and
    after a save that stopped training for more than 5 s. The checkpoint at the end of a run is
    always waited for."""
    max_mb_per_second: PositiveFloat | None = None
    """Maximum rate in MiB per second at which a node writes checkpoints in the background. Default:
    no limit."""
    memory: bool | None = None
    """Whether ranks that must end keep their state in memory, so that the next attempt repeats no
    update, if the agent offers memory. Default: true on the CPU, false on GPUs."""
    memory_every_steps: PositiveInt | Literal["auto"] | None = "auto"
    """Updates between two copies of the state in memory, for faults that end all ranks at once.
    auto copies as often as 0.5 % of the time permits. null: none. Without enough memory for two
    copies on each node there are none, too."""
    timeout_seconds: PositiveInt = 3600
    """Maximum seconds that the other ranks wait while rank 0 writes or reads a checkpoint. In a
    job, spec.hang.checkpointSeconds is shorter by default, so raise both."""
    mirror: str | None = None
    """Address of this run in an object store, such as s3://bucket/run, to which a process copies
    each newest checkpoint behind the training. A run whose directory has no usable checkpoint
    resumes from there. Default: no copies."""
    mirror_keep: PositiveInt = 3
    """Number of newest checkpoints to keep in the object store."""
    mirror_mb_per_second: PositiveFloat | None = None
    """Maximum rate of the copy to the object store, in MiB per second. Default: no limit."""
    mirror_seconds: PositiveInt = 300
    """Maximum seconds that a complete run waits at its end until its last checkpoint is copied."""

    @model_validator(mode="after")
    def _check_mirror(self) -> Self:
        if self.mirror is not None:
            check_url("mirror", self.mirror)
            return self
        for key in sorted({"mirror_keep", "mirror_mb_per_second", "mirror_seconds"}):
            if key in self.changed():
                raise ValueError(no_effect(key, "without mirror"))
        return self

    @property
    def chooses_interval(self) -> bool:
        """Whether the trainer chooses the seconds between two checkpoints."""
        return self.every_seconds == "auto" and self.every_steps is None

    @model_validator(mode="after")
    def _check_best(self) -> Self:
        if self.keep_best is None and "keep_best_mode" in self.changed():
            raise ValueError(no_effect("keep_best_mode", "without keep_best"))
        if self.memory is False and isinstance(self.memory_every_steps, int):
            raise ValueError(no_effect("memory_every_steps", "with memory false"))
        return self


class LogConfig(Section):
    """Settings of progress lines."""

    every_steps: PositiveInt = 10
    """Number of updates between two progress lines."""
    format: Literal["text", "json"] | None = None
    """Form of the printed events: text, or one JSON object per line. Default: that of the agent's
    log lines, which is text unless the chart sets operator.logFormat."""
    all_ranks: bool = False
    """Whether every rank prints progress lines with its own times. Otherwise only rank 0 prints."""
    trackers: list[TrackerName] = Field(default_factory=list)
    """Experiment trackers to which rank 0 writes: tensorboard, mlflow, wandb. mlflow and wandb need
    their packages."""
    peak_tflops: PositiveFloat | None = None
    """Peak rate of one device at the run's precision, in TFLOP/s. If set, progress lines include
    the model FLOPs utilization; the task must define flops_per_sample."""


class RunConfig(Section):
    """Settings of one run."""

    epochs: PositiveInt | None = None
    """Number of passes over the training data. Default: 1, unless max_steps is set."""
    max_steps: PositiveInt | None = None
    """Number of updates after which the run is complete, even within an epoch. Default: no
    limit."""
    max_seconds: PositiveFloat | None = None
    """Seconds of training over all attempts, after which the run is complete. Default: no limit."""
    global_batch: PositiveInt = 32
    """Samples per update over all ranks, at least one per rank. The ranks' shares may differ by one
    sample."""
    micro_batch: PositiveInt | None = None
    """Maximum samples per rank in one forward pass. Default: the rank's whole share of the
    update."""
    precision: Precision = "auto"
    """Precision of the forward and backward pass. Weights are fp32, or fp64 with fp64. auto is tf32
    on CUDA and fp32 on the CPU."""
    clip_norm: PositiveFloat | None = None
    """Maximum norm of the gradient. A larger gradient is scaled down. Default: no clipping."""
    sync_batch_norm: bool = False
    """Whether BatchNorm uses the samples of all ranks in training. CUDA only."""
    channels_last: bool = False
    """Whether images use torch's channels_last memory format, which is faster on CUDA."""
    activation_checkpointing: bool = False
    """Whether repeated blocks, for example of a transformer, store only their inputs and are
    computed again in the backward pass. This takes less memory and about a third more time."""
    compile: bool = False
    """Whether to compile the model with torch.compile."""
    compile_dynamic: bool | None = None
    """Whether torch.compile makes one program for all shapes of a batch (true), or up to eight
    programs for single shapes (false). Default: one for all shapes after the first change of a
    shape."""
    compile_mode: CompileMode = "default"
    """Optimization goal of torch.compile. reduce-overhead uses CUDA graphs on CUDA. max-autotune
    also tries different kernels, which takes minutes."""
    deterministic: bool = False
    """Whether to use only deterministic algorithms, which are slower."""
    init_from: str | None = None
    """Initial weights: path of a safetensors file, a file of torch.save, a DCP folder, a checkpoint
    or a run's directory, or its address in an object store, such as s3://bucket/run. Training
    starts at update 0. An existing checkpoint of this run takes precedence."""
    init_strict: bool = True
    """Whether all weights of init_from must match the model. Otherwise a mismatch only causes a
    warning."""
    eval_every_steps: PositiveInt | None = None
    """Number of updates between two evaluations. The end of the run is evaluated too. Default: one
    evaluation per epoch."""
    collect_every_steps: PositiveInt = 50
    """Number of updates between two garbage collections of Python, which all ranks run at the same
    time."""
    seed: NonNegativeInt = 0
    """Seed of all random generators."""
    device: Device = "auto"
    """Device for training. auto uses CUDA if available, otherwise the CPU."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig = EmaConfig()
    nonfinite: NonFiniteConfig = NonFiniteConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()
    log: LogConfig = LogConfig()
    task: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the task, which the task's own model validates."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.init_from is None and "init_strict" in self.changed():
            raise ValueError(no_effect("init_strict", "without init_from"))
        for key in sorted({"compile_dynamic", "compile_mode"} & self.changed()):
            if not self.compile:
                raise ValueError(no_effect(key, "without compile"))
        if self.precision == "fp16" and self.parallel.local_sgd.period is not None:
            raise ValueError(
                "parallel.local_sgd cannot be combined with precision fp16, because each rank would"
                " use its own loss scale"
            )
        if self.precision == "fp16":
            if self.parallel.strategy != "ddp":
                raise ValueError(
                    "precision fp16 requires parallel.strategy ddp; bf16 works with every strategy"
                )
            if self.nonfinite.policy in ("stop", "rollback"):
                raise ValueError(
                    "nonfinite.policy must be skip with precision fp16, because gradient overflows"
                    " set its loss scale"
                )
        if self.log.trackers and self.checkpoint.directory is None:
            raise ValueError(
                "log.trackers requires checkpoint.directory, where the ids of the tracked runs are"
                " kept for later attempts"
            )
        if self.nonfinite.policy == "rollback" and self.checkpoint.directory is None:
            raise ValueError("nonfinite.policy rollback requires checkpoint.directory")
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        if self.init_from is not None and is_url(self.init_from):
            check_url("init_from", self.init_from)
        if self.checkpoint.mirror is not None and self.checkpoint.directory is None:
            raise ValueError("checkpoint.mirror requires checkpoint.directory, which it copies")
        return self

    def compile_options(self) -> dict[str, bool | str | None] | None:
        """Return the options of torch.compile, or None without `compile`."""
        if not self.compile:
            return None
        return {"dynamic": self.compile_dynamic, "mode": self.compile_mode}

    def batch_split(self, world_size: int) -> "BatchSplit":
        """Divide `global_batch` among ranks and forward passes.

        The shares of ranks differ by one sample if the batch does not divide.

        Args:
            world_size: Number of ranks.

        Raises:
            InputError: If a rank would get no sample.
        """
        if self.global_batch < world_size:
            raise InputError(
                f"config: global_batch {self.global_batch} is less than the number of ranks,"
                f" {world_size}; each rank needs a sample"
            )
        share = -(-self.global_batch // world_size)
        micro = min(self.micro_batch or share, share)
        return BatchSplit(per_rank=share, micro_batch=micro, accumulation=-(-share // micro))


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """Division of one update's samples among ranks and forward passes."""

    per_rank: int
    """Maximum number of samples per rank and update."""
    micro_batch: int
    """Maximum number of samples per rank and forward pass."""
    accumulation: int
    """Number of forward passes per rank and update."""
