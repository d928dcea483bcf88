"""Tests that `check` reports each mistake of a task in one sentence and accepts good tasks.

`mistakes.json` has the sentences. "..." in it stands for any text.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.tools.check.run import check_run
from tests.trainer import model_mistakes
from tests.trainer.mistakes import MISTAKES

SENTENCES: dict[str, str] = json.loads((Path(__file__).parent / "mistakes.json").read_text())
WARNED = {
    "augmentation_by_the_clock",
    "augmentation_by_the_system",
    "augmentation_without_a_seed",
    "batch_that_cannot_move",
    "head_outside_the_model",
    "layers_in_a_list",
    "loss_draws_from_its_own_generator",
    "model_in_evaluation_mode",
    "slice_of_a_table",
}
"""Mistakes with which a task can still train. `check` only warns about them."""
HOMES = dict.fromkeys(vars(model_mistakes).keys() & MISTAKES.keys(), "model_mistakes")
"""Module that contains each mistake that is not in `mistakes`."""
STREAM = {"max_steps": 5}
SETTINGS: dict[str, dict[str, Any]] = {
    "batch_norm_gets_one_sample": {"global_batch": 8},
    "collate_in_a_lambda": {"data": {"workers": 2}},
    "frozen_codes": {"parallel": {"strategy": "fsdp2"}},
    "number_as_a_weight": {"parallel": {"strategy": "fsdp2"}},
    "generator_as_data": STREAM,
    "stream_by_rank": STREAM,
    "stream_in_another_order": STREAM,
}


def findings(path: str, **settings: Any) -> tuple[list[str], list[str]]:
    """Return the error of `check` for two ranks, if any, and its warnings."""
    warnings: list[str] = []

    def emit(kind: str, **fields: Any) -> None:
        if kind == "warning":
            warnings.append(fields["message"])

    try:
        check_run(path, resolve(settings), 64, 2, emit)
    except InputError as error:
        return [str(error)], warnings
    return [], warnings


@pytest.mark.parametrize("name", MISTAKES)
def test_check_reports_each_mistake_in_one_sentence(name: str) -> None:
    settings = {"global_batch": 32, "task": {"name": name}} | SETTINGS.get(name, {})
    errors, warnings = findings(f"{HOMES.get(name, 'mistakes')}:build", **settings)
    found, others = (warnings, errors) if name in WARNED else (errors, warnings)
    assert others == []
    (sentence,) = found
    pattern = ".*".join(map(re.escape, SENTENCES[name].split("...")))
    assert re.fullmatch(pattern, sentence), sentence


def test_table_of_mistakes_has_a_sentence_for_each_mistake() -> None:
    assert list(SENTENCES) == sorted(MISTAKES)
    assert set(MISTAKES) >= WARNED | SETTINGS.keys()


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("ddp_trainer.tasks.gpt:build", {}),
    ("ddp_trainer.tasks.miniresnet:build", {}),
    ("sample_tasks:build", {"task": {"tied": True, "uneven": True, "dropout": 0.5, "noise": 0.1}}),
    ("sample_tasks:build", {"task": {"batch_norm": True}, "data": {"workers": 2}}),
    ("sample_tasks:build_own", {"parallel": {"strategy": "fsdp2"}}),
    ("sample_tasks:build_stream", STREAM),
    ("sample_tasks:build_teacher", {}),
    ("sample_tasks:build_drawing", {}),
    ("buffer_tasks:build", {}),
]


@pytest.mark.parametrize(("path", "settings"), GOOD)
def test_check_finds_no_mistake_in_a_correct_task(path: str, settings: dict[str, Any]) -> None:
    assert findings(path, **settings) == ([], [])
