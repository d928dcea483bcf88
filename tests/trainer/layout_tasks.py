"""A task whose weights have every memory layout that torch allows."""

from types import SimpleNamespace
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddp_trainer.task import RunEnv, Weighted


class LayoutConfig(BaseModel):
    layout: Literal["contiguous", "strided"] = "strided"
    """Layout of the weights. Values are the same in all layouts."""
    half: bool = False
    """Whether one weight is bf16."""
    shared: Literal["", "expanded", "overlapping", "twice"] = ""
    """Way in which elements of weights share memory."""


class Layouts(nn.Module):
    def __init__(self, cfg: LayoutConfig) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw) / 3

        self.image = nn.Conv2d(3, 4, 3)
        self.image.weight.data = weight(4, 3, 3, 3)
        self.video = nn.Conv3d(2, 3, (1, 2, 2))
        self.video.weight.data = weight(3, 2, 1, 2, 2)
        table = weight(6, 8)
        self.slice = nn.Parameter(table[:, ::2] if cfg.layout == "strided" else weight(0))
        self.turned = nn.Parameter(weight(5, 6).t())
        self.plain = nn.Parameter(weight(6, 5))
        self.narrow = nn.Parameter(weight(6, 5).to(torch.bfloat16 if cfg.half else torch.float32))
        self.scale = nn.Parameter(weight(1))
        self.tied = self.turned
        self.register_buffer("mask", torch.ones(1).expand(6))
        if cfg.layout == "contiguous":
            self.slice = nn.Parameter(table[:, ::2].contiguous())
            for param in self.parameters():
                param.data = param.data.contiguous()
        else:
            self.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.video.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        self._share(cfg.shared)

    def _share(self, how: str) -> None:
        match how:
            case "expanded":
                self.scale = nn.Parameter(torch.ones(1).expand(6))
            case "overlapping":
                base = torch.ones(40)
                self.plain = nn.Parameter(base[:30].view(6, 5))
                self.scale = nn.Parameter(base[29:30])
            case "twice":
                self.scale = nn.Parameter(self.plain[:1, 0].detach())
            case _:
                pass

    def forward(self, x: Tensor) -> Tensor:
        image = x[:, :75].view(-1, 3, 5, 5)
        video = x[:, :18].view(-1, 2, 1, 3, 3)
        one = self.image(image).amax((2, 3)) @ self.slice.t()
        other = self.video(video).mean((2, 3, 4)).repeat(1, 2) * self.mask
        mixed = torch.tanh(one + other) @ self.tied
        found: Tensor = (mixed * self.scale[0]) @ self.plain.t()
        return found + x[:, :6] @ self.narrow.to(x.dtype) @ self.turned.t()


def build(cfg: LayoutConfig, _env: RunEnv) -> Any:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(96, 75, generator=draw), torch.randint(6, (96,), generator=draw)

    def loss(model: nn.Module, batch: Any) -> Weighted:
        inputs, labels = batch
        total = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
        return Weighted(total, len(labels))

    data = TensorDataset(x, y)
    return SimpleNamespace(model=Layouts(cfg), train_data=data, eval_data=None, loss=loss)
