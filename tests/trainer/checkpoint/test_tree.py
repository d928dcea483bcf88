"""Nested state of tensors and JSON values returns exactly from a checkpoint."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp_trainer.checkpoint import load, writer
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.checkpoint.tree import decode, encode
from ddp_trainer.errors import InputError
from tests.trainer.checkpoint.test_manager import whole


def adam() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.5, 0.9))
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


STATE = {
    "step": 7,
    "on": True,
    "none": None,
    "rate": 0.1 + 0.2,
    "limit": math.inf,
    "large": 2**70,
    "names": ["a", ["b"], ("c", 1)],
    "$odd": {"$tensor": "not a tensor"},
    "a/b": torch.arange(3, dtype=torch.int16),
    "a": {"b": torch.tensor(True), "empty": torch.zeros(0, 2), "fp8": torch.ones(3)},
    "none of them": {},
    "optimizer": adam(),
    "module": nn.Linear(2, 1).state_dict(),
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.equal(other)
    if isinstance(one, dict):
        keys = list(one) == list(other)
        return keys and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(equal, one, other)) and len(one) == len(other)
    return type(one) is type(other) and bool(one == other)


def test_state_of_a_task_is_restored_exactly(tmp_path: Path) -> None:
    tensors, document = encode(STATE, "task")
    taken = Snapshot({}, {}, {}, task=tensors, task_rest=document)
    path = writer.commit(tmp_path, CheckpointName(1, 1), whole(1, taken), lambda: None)
    got = load.receive(path, torch.device("cpu")).snapshot
    assert got.task_rest == document
    assert equal(decode(dict(got.task.items()), got.task_rest), STATE)


def test_saved_document_refers_to_tensors_by_name() -> None:
    tensors, document = encode({"teacher": OrderedDict(w=torch.ones(1)), "step": 2}, "task")
    assert list(tensors) == ["teacher/w"]
    assert json.dumps(document) == '{"teacher": {"w": {"$tensor": "teacher/w"}}, "step": 2}'


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (Path("/x"), "PosixPath"),
        (b"", "bytes"),
        ({1, 2}, "set"),
        (torch.zeros(1, dtype=torch.complex128), "torch.strided of torch.complex128"),
        (torch.zeros(2).to_sparse(), "torch.sparse_coo of torch.float32"),
    ],
)
def test_state_value_of_another_type_is_refused_with_its_path(value: Any, given: str) -> None:
    with pytest.raises(InputError) as error:
        encode({"teacher": [1, value]}, "task")
    assert str(error.value) == (
        'checkpoint: "teacher/1" in the state of the task must be a tensor or a JSON value, not'
        f" {given}"
    )


def test_state_key_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be a tensor or a JSON value, not a key of type tu"):
        encode({(1, 2): 3}, "task")
