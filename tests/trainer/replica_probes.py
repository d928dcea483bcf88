"""Functions that tests call on every rank to corrupt the state of one rank."""

import json
import os
from typing import Any

from torch import Tensor

from ddp_trainer import step as step_
from ddp_trainer import train as train_
from ddp_trainer.commands.main import main
from ddp_trainer.learner import Learner
from ddp_trainer.observe.trace import Trace
from ddp_trainer.run import replicas
from ddp_wire.activity import Activity


def flip_bit(tensor: Tensor, byte: int = 1, bit: int = 4) -> None:
    """Flip one bit of a tensor in place, as a fault of the memory does."""
    data = tensor.detach().untyped_storage()
    place = tensor.storage_offset() * tensor.element_size() + byte
    data[place] = data[place] ^ (1 << bit)


def _chosen(learner: Learner, what: str) -> Tensor:
    weight = dict(learner.model.named_parameters())["middle.weight"]
    if what == "weight":
        return weight.data
    if what == "average":
        assert learner.ema is not None
        return learner.ema.state()["middle.weight"]
    found: Tensor = learner.optimizer.state[weight][what]
    return found


def train_with_flip(given: dict[str, Any]) -> int:
    """Train, and flip a bit on some ranks after an update.

    Args:
        given: `ranks`, `step` (updates done), `what` (weight, average or a key of the optimizer's
            state), and the `arguments` of the command. With `nan`, the ranks get a NaN with other
            bits instead.
    """
    step = step_.train_step

    def corrupting(learner: Learner, *rest: Any) -> int:
        samples = step(learner, *rest)
        if rest[1] + 1 != given["step"]:
            return samples
        tensor = _chosen(learner, given.get("what", "weight"))
        if given.get("nan"):
            tensor.view(-1)[0] = float("nan")
        if int(os.environ["RANK"]) in given["ranks"]:
            flip_bit(tensor)
        return samples

    vars(train_)["train_step"] = corrupting
    return main(["train", "--task=sample_tasks:build", *given["arguments"]])


def count_checks(arguments: list[str]) -> int:
    """Train, and print the number of tensors of each comparison, and the activity of rank 0."""
    compared, enter = replicas.compared, Trace.enter
    entered: list[Activity] = []

    def counted(learner: Learner) -> dict[str, Tensor]:
        found = compared(learner)
        if os.environ["RANK"] == "0":
            fields = {"tensors": len(found), "activity": entered[-1].name.lower()}
            print(json.dumps({"event": "compared"} | fields), flush=True)
        return found

    def entering(self: Trace, activity: Activity) -> None:
        entered.append(activity)
        enter(self, activity)

    Trace.enter = entering  # type: ignore[method-assign]
    replicas.compared = counted
    return main(["train", *arguments])
