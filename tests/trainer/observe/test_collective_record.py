"""torch's record of collectives, with the entries of NCCL that this machine cannot make.

Their form is that of torch 2.11 with NCCL 2.28 on one H100.
"""

import json
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from ddp_trainer.observe.collective_record import collective_name, newest_collectives


def entry(number: int, state: str, **fields: Any) -> dict[str, Any]:
    made = {
        "collective_seq_id": number,
        "pg_id": 0,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[75]],
        "state": state,
    }
    return made | fields


def numbers(
    monkeypatch: pytest.MonkeyPatch, nccl: list[dict[str, Any]], most: int = 10
) -> list[int]:
    """Return the numbers of the newest collectives when NCCL has this record and gloo has none."""
    records = {"_dump_nccl_trace_json": {"entries": nccl}, "_dump_fr_trace_json": {}}
    for name, record in records.items():
        monkeypatch.setattr(
            c10d, name, lambda record=record, **_: json.dumps(record), raising=False
        )
    return [one["collective_seq_id"] for one in newest_collectives(most)]


def test_record_of_a_rank_that_runs_ahead_shows_the_first_unfinished_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = [entry(52, "completed"), entry(53, "scheduled"), entry(54, "scheduled")]
    assert numbers(monkeypatch, ahead) == [52, 53]


def test_rank_that_began_no_further_collective_counts_as_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert numbers(monkeypatch, [entry(51, "completed"), entry(52, "completed")]) == [51, 52]


def test_only_the_newest_collectives_of_the_default_group_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = [entry(9, "scheduled", pg_id=1), entry(1, "scheduled", is_p2p=True)]
    record = [entry(51, "completed"), entry(52, "completed"), *other, entry(53, "started")]
    assert numbers(monkeypatch, record, most=2) == [52, 53]


def test_name_of_a_collective_contains_the_tensor_sizes() -> None:
    assert collective_name(entry(1, "started", input_sizes=[[2, 3], [4]])) == (
        "all_reduce of [2, 3] and [4]"
    )
