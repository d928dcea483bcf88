"""Tasks whose loss changes buffers: a normaliser, a codebook, a queue, InstanceNorm."""

import torch
from torch import Tensor, nn

from ddp_trainer.task import RunEnv, Update
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask

CODES = 5


class BufferConfig(ProbeConfig):
    kind: str = "all"
    """Module below that the model contains. `late` is a normaliser that begins in pass 8."""
    stray: bool = False
    """Whether the task adds the rank's number to a buffer after each update."""
    grows: bool = False
    """Whether a buffer grows by one number in each pass."""


class Normalizer(nn.Module):
    """Module that normalises by running means. Each pass replaces the tensors of the means."""

    mean: Tensor
    passes: Tensor

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int32))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            if self.calls > self.first:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
                self.passes += 1
        return x - self.mean


class Codebook(nn.Module):
    """Module that adds the nearest code. Codes are moving averages in a frozen parameter."""

    size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, 6), requires_grad=False)
        self.register_buffer("size", torch.ones(CODES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        if self.training:
            chosen = (nearest[:, None] == torch.arange(CODES)).long()
            self.size.data.mul_(0.9).add_(0.1 * chosen.sum(0))  # Changes no version counter.
            sums = chosen.T.to(x.dtype) @ x.detach()
            step = 0.1 * (sums - chosen.sum(0)[:, None] * self.codes)
            self.codes.data.add_(step / self.size[:, None].float())
        return x + self.codes[nearest]


class Queue(nn.Module):
    """Module that compares inputs with samples of earlier batches, as a contrastive loss does."""

    items: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("items", torch.zeros(8, 6))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        items = self.items.clone()
        near = torch.softmax(x @ items.T, 1) @ items
        if self.training:
            at = (self.place + torch.arange(len(x))) % len(self.items)
            self.items[at] = x.detach()
            self.place.copy_((self.place + len(x)) % len(self.items))
        return x + 0.1 * near


class Channels(nn.Module):
    """Module with an InstanceNorm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x.view(-1, 2, 3)).flatten(1)
        return found


class BufferModel(nn.Module):
    def __init__(self, cfg: BufferConfig, inner: nn.Module) -> None:
        super().__init__()
        kinds: dict[str, nn.Module] = {
            "normalizer": Normalizer(0),
            "codebook": Codebook(),
            "queue": Queue(),
            "channels": Channels(),
        }
        late = {"late": Normalizer(8)}
        wanted = {**kinds, **late} if cfg.kind != "all" else kinds
        self.first = nn.Sequential()
        for name, module in wanted.items():
            if cfg.kind in {"all", name}:
                self.first.add_module(name, module)
        self.still: Tensor
        self.register_buffer("still", torch.arange(4.0))
        self.inner = inner
        self.grows = cfg.grows

    def forward(self, x: Tensor) -> Tensor:
        if self.grows and self.training:
            self.still = torch.cat([self.still, torch.ones(1)])
        scores: Tensor = self.inner(self.first(x))
        return scores


class BufferTask(ProbeTask):
    def __init__(self, cfg: BufferConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.model = BufferModel(cfg, self.model)

    def after_update(self, update: Update) -> None:
        if isinstance(self.cfg, BufferConfig) and self.cfg.stray:
            update.model.get_buffer("first.normalizer.mean").add_(self.env.rank)


def build(cfg: BufferConfig, env: RunEnv) -> BufferTask:
    return BufferTask(cfg, env)
