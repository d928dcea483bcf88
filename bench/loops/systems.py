"""Run the compared training loops. Each trains a workload once and returns the model's weights.

All loops use the same model, weights, data, loss and optimizer, and read the loss equally often.
The frameworks run as their documentation shows, with optional features switched off.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.loops.workloads import (
    REPORT_EVERY,
    Setting,
    StepTimer,
    TimedDataset,
    Workload,
    build,
    optimizer_config,
    sharded_loader,
    to_device,
)
from ddp_trainer.numerics.optimizer import build_optimizer
from ddp_trainer.numerics.precision import autocast, grad_scaler
from ddp_trainer.observe.heartbeats import MIN_SECONDS, HeartbeatWriter
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop

Weights = dict[str, Tensor]
Train = Callable[[Workload, Setting, StepTimer], Weights]


def _weights(model: nn.Module) -> Weights:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def ours(work: Workload, at: Setting, timer: StepTimer) -> Weights:
    """Run the product's loop as `train` does, with its events and heartbeats."""
    config = work.run_config(at.ranks, at.device, at.steps, at.seed)
    with TemporaryDirectory() as folder:
        often = MIN_SECONDS * work.shares
        heartbeats = HeartbeatWriter(Path(folder), at.ranks, 0, min_seconds=often)
        run = open_run(RunRequest(work.task, config), at.ranks, StopFlag(), heartbeats)
        cast("TimedDataset", run.task.train_data).timer = timer
        loop(run)
    return _weights(run.learner.model)


def minimal(work: Workload, at: Setting, timer: StepTimer) -> Weights:
    """Run a hand-written loop: DDP with its defaults and nothing else."""
    task = build(work, at)
    task.train_data.timer = timer
    on_gpu = at.device.type == "cuda"
    model = task.model.to(at.device)
    optimizer = build_optimizer(model.parameters(), optimizer_config(work))
    ddp = DistributedDataParallel(model, device_ids=[at.device] if on_gpu else None)
    scaler = grad_scaler(work.precision, at.device)
    for step, cold in enumerate(sharded_loader(task, work, at)):
        batch = to_device(cold, at.device)
        with autocast(work.precision, at.device):
            weighted = task.loss(ddp, batch)
            loss = weighted.sum / weighted.count
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            loss.item()
    return _weights(model)


def fabric(work: Workload, at: Setting, timer: StepTimer) -> Weights:
    """Run Lightning Fabric."""
    from lightning.fabric import Fabric  # noqa: PLC0415 - import a framework only where it is measured

    task = build(work, at)
    task.train_data.timer = timer
    engine = Fabric(
        accelerator=at.device.type,
        devices=at.ranks.local_world_size,
        strategy="ddp",
        precision=_LIGHTNING_PRECISION[work.precision],
    )
    engine.launch()
    optimizer = build_optimizer(task.model.parameters(), optimizer_config(work))
    model, optimizer = engine.setup(task.model, optimizer)
    loader = engine.setup_dataloaders(sharded_loader(task, work, at), use_distributed_sampler=False)
    for step, batch in enumerate(loader):
        weighted = task.loss(model, batch)
        loss = weighted.sum / weighted.count
        engine.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            loss.item()
    return _weights(task.model)


def accelerate(work: Workload, at: Setting, timer: StepTimer) -> Weights:
    """Run Hugging Face Accelerate, whose loader distributes whole batches to the ranks in turn."""
    from accelerate import Accelerator  # noqa: PLC0415

    task = build(work, at)
    task.train_data.timer = timer
    precision = {"fp32": "no", "tf32": "no"}.get(work.precision, work.precision)
    engine = Accelerator(cpu=at.device.type == "cpu", mixed_precision=precision)
    plain: DataLoader[Any] = DataLoader(
        task.train_data,
        batch_size=work.local_batch,
        collate_fn=task.collate,
        pin_memory=at.device.type == "cuda",
    )
    optimizer = build_optimizer(task.model.parameters(), optimizer_config(work))
    model, optimizer, loader = engine.prepare(task.model, optimizer, plain)
    for step, batch in enumerate(loader):
        weighted = task.loss(model, batch)
        loss = weighted.sum / weighted.count
        engine.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            loss.item()
    weights = _weights(engine.unwrap_model(model))
    engine.free_memory()
    return weights


def lightning(work: Workload, at: Setting, timer: StepTimer) -> Weights:
    """Run Lightning's Trainer in its barebones mode, which switches off all optional features."""
    from lightning.pytorch import LightningModule, Trainer  # noqa: PLC0415

    task = build(work, at)
    task.train_data.timer = timer

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def training_step(self, batch: Any) -> Tensor:
            weighted = task.loss(self.model, batch)
            return weighted.sum / weighted.count

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self.model.parameters(), optimizer_config(work))

    trainer = Trainer(
        accelerator=at.device.type,
        devices=at.ranks.local_world_size,
        strategy="ddp",
        precision=_LIGHTNING_PRECISION[work.precision],
        max_epochs=1,
        use_distributed_sampler=False,
        barebones=True,
    )
    trainer.fit(Module(), sharded_loader(task, work, at))
    return _weights(task.model)


_LIGHTNING_PRECISION = {
    "fp32": "32-true",
    "tf32": "32-true",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
}

SYSTEMS: dict[str, Train] = {
    "minimal": minimal,
    "minimal again": minimal,
    "ours": ours,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "Lightning Trainer": lightning,
}
"""Loops by name. `minimal` appears twice, because the difference between the two is noise."""
