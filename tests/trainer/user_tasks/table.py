"""The tasks of this folder, with the effect of the number of ranks on each task."""

from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["ddp", "zero1", "fsdp2"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class UserTask:
    """One task, and the settings with which the tests run it."""

    name: str
    """Name of the task's module in this folder."""
    settings: tuple[str, ...] = ()
    """Settings that the task needs."""
    depends: str = ""
    """Reason why the trained weights depend on the number of ranks. Empty if they do not."""
    verify: tuple[str, ...] = ()
    """Settings with which `verify` can compare ranks. `verify` itself turns off dropout and
    BatchNorm."""
    independent: tuple[str, ...] | None = ()
    """Settings with which the weights do not depend on the number of ranks; None if there are
    none."""

    untraceable: str = ""
    """Reason why torch cannot trace the model, so that the trainer exports only its weights. Empty
    if torch can."""
    varies_on_cuda: str = ""
    """Reason why two equal runs may differ on CUDA. Empty if they do not differ."""
    has_optimizer: bool = False
    """Whether the task has its own optimizer, so that settings must not state one."""

    @property
    def path(self) -> str:
        """Import path of the task's `build`."""
        return f"user_tasks.{self.name}:build"


POSITIONS = "torch has no deterministic cross_entropy over positions (nll_loss2d) for CUDA"
DROPOUT = "each rank draws its own dropout"

TASKS = (
    UserTask(
        "unet",
        depends="BatchNorm normalises each rank's part of the batch by itself",
        independent=("--task.norm=group",),
        varies_on_cuda=POSITIONS,
    ),
    UserTask(
        "lstm",
        depends=DROPOUT,
        independent=("--task.dropout=0",),
        untraceable="torch.export cannot trace the length of a packed sequence",
    ),
    UserTask("bert", depends=DROPOUT, independent=("--task.dropout=0",)),
    UserTask(
        "text",
        settings=("--compile=true", "--compile_dynamic=true"),
        varies_on_cuda=POSITIONS,
    ),
    UserTask(
        "vq",
        depends="the codebook follows the samples of rank 0",
        independent=("--task.moving=false",),
    ),
    UserTask("frozen"),
    UserTask(
        "moco",
        depends="each rank draws its own views, and the queue has the keys of rank 0",
        verify=("--task.augmentation=0",),
        independent=None,
    ),
    UserTask(
        "mixup",
        depends="each rank mixes the samples of its own part of the batch",
        independent=("--task.alpha=0",),
    ),
    UserTask(
        "gan",
        has_optimizer=True,
        depends="each rank draws its own noise in the loss",
        verify=("--task.fixed_noise=true",),
        independent=("--task.fixed_noise=true",),
    ),
    UserTask("stream", settings=("--data.workers=2",)),
    UserTask(
        "heads",
        settings=("--parallel.find_unused_parameters=true",),
        untraceable="the values of a batch decide which layers compute",
    ),
    UserTask("lora"),
)
"""All tasks. `make test` runs each task in a third of the tests, which its index selects
(`sample`). So a task that is slow to train (`text` compiles, `stream` starts worker processes) has
an index that only `verify` uses."""


def sample(drive: int) -> tuple[UserTask, ...]:
    """Return the third of the tasks that `make test` runs in a test.

    Args:
        drive: Number of the test, from 0.
    """
    return TASKS[drive % 3 :: 3]
