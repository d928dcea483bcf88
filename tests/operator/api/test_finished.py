"""The list of finished jobs of a namespace, which its users may edit."""

import json
from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.finished import add_finished, entry_text, read_finished
from ddp_operator.api.summary import JobSummary
from ddp_operator.limits import FINISHED_JOB_BYTES, FINISHED_JOBS, FINISHED_LIST_BYTES
from tests.operator.support import NOW


def ended(number: int, **fields: Any) -> JobSummary:
    given = {"name": f"job-{number}", "uid": f"uid-{number}", "state": "Completed"}
    end = NOW + timedelta(seconds=number)
    return JobSummary.model_validate({**given, "completionTime": end, **fields})


def stored(*jobs: JobSummary, **more: Any) -> dict[str, Any]:
    return {"data": {one.uid: entry_text(one) for one in jobs} | more}


def patched(config_map: dict[str, Any], job: JobSummary) -> dict[str, Any]:
    """Return the ConfigMap after the patch that adds a job."""
    patch = add_finished(config_map, job) or {}
    data = {**config_map.get("data", {}), **patch.get("data", {})}
    return {"data": {uid: text for uid, text in data.items() if text is not None}}


def names(config_map: dict[str, Any] | None) -> list[str]:
    return [one.name for one in read_finished(config_map)]


def test_jobs_are_added_and_read_newest_first() -> None:
    assert names(None) == []
    found = dict[str, Any]()
    for number in (2, 1, 3):
        found = patched(found, ended(number))
    assert names(found) == ["job-3", "job-2", "job-1"]
    assert read_finished(found)[0] == ended(3)


def test_job_that_the_list_has_needs_no_write() -> None:
    assert add_finished(stored(ended(1), ended(2)), ended(1)) is None
    assert add_finished(stored(ended(1)), ended(1, message="more")) == {
        "data": {"uid-1": entry_text(ended(1, message="more"))}
    }


def test_full_list_drops_its_oldest_job() -> None:
    full = stored(*(ended(number) for number in range(1, FINISHED_JOBS + 1)))
    patch = add_finished(full, ended(1000))
    assert patch == {"data": {"uid-1": None, "uid-1000": entry_text(ended(1000))}}
    assert add_finished(full, ended(0)) is None, "it is older than all others"


def test_list_has_a_limit_of_bytes() -> None:
    long = "\u4e16" * 512
    full = dict[str, Any]()
    for number in range(FINISHED_JOBS):
        full = patched(full, ended(number, message=long))
    size = sum(len(uid) + len(text.encode()) for uid, text in full["data"].items())
    assert size <= FINISHED_LIST_BYTES
    assert names(full)[0] == f"job-{FINISHED_JOBS - 1}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        entry_text(ended(7)),
        entry_text(ended(1)).replace("job-1", "x" * 300),
        json.dumps({"uid": "uid-1", "name": "job-1", "state": "S", "completionTime": "today"}),
        json.dumps({"uid": "uid-1", "name": "a", "state": "S", "completionTime": "2026-03-01"}),
        json.dumps({"uid": "uid-1", "name": "job-1", "state": "Completed", "attempts": -1}),
        entry_text(ended(1)) + " " * FINISHED_JOB_BYTES,
        5,
        None,
    ],
)
def test_entry_that_somebody_edited_is_ignored_and_removed(text: Any) -> None:
    found = {"data": {"uid-1": text}}
    assert read_finished(found) == []
    patch = add_finished(found, ended(2))
    assert patch is not None
    assert patch["data"] == {"uid-1": None, "uid-2": entry_text(ended(2))}


def test_edited_entry_of_a_job_is_written_again() -> None:
    assert names(patched({"data": {"uid-1": "{}"}}, ended(1))) == ["job-1"]


@pytest.mark.parametrize("config_map", [{}, {"data": None}, {"data": []}, {"data": "text"}])
def test_config_map_without_data_is_an_empty_list(config_map: dict[str, Any]) -> None:
    assert read_finished(config_map) == []
    assert add_finished(config_map, ended(1)) == {"data": {"uid-1": entry_text(ended(1))}}


def test_binary_data_is_removed() -> None:
    patch = add_finished({**stored(), "binaryData": {"a": "AA=="}}, ended(1))
    assert patch is not None
    assert patch["binaryData"] is None


def test_thousands_of_tiny_entries_are_not_all_checked() -> None:
    planted = {f"p{number}": "{}" for number in range(17_000)}
    patch = add_finished({"data": planted}, ended(1))
    assert patch is not None
    assert len(patch["data"]) == 17_001


def test_control_characters_of_an_entry_do_not_reach_a_terminal() -> None:
    text = entry_text(ended(1)).replace("Completed", "\\u001b[31mred")
    (found,) = read_finished({"data": {"uid-1": text}})
    assert "\x1b" not in found.state
