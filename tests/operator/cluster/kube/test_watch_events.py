"""Tests of watch lines, and of the reaction to each error."""

import pytest

from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.kube.watch_events import (
    Backoffs,
    Lines,
    StaleError,
    decode_event,
    must_list,
)
from tests.operator.cluster.kube.watch_lines import bookmark, error, event


def test_lines_are_assembled_from_pieces_of_any_size() -> None:
    text = b'{"a": 1}\n\n  {"b": 2}\r\n{"c": 3}'
    for size in range(1, len(text) + 1):
        lines = Lines()
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = [line for piece in pieces for line in lines.feed(piece)]
        assert found == [b'{"a": 1}', b'{"b": 2}']
        assert list(lines.feed(b"\n")) == [b'{"c": 3}']


def test_event_keeps_only_the_used_fields() -> None:
    found = decode_event("Pod", event("ADDED", version=7, managedFields=[{"fieldsV1": {}}]))
    assert (found.type, found.version) == ("ADDED", "7")
    assert "managedFields" not in found.object["metadata"]
    assert decode_event("Pod", bookmark(8)) == ("BOOKMARK", {}, "8")


def test_error_event_of_the_server_is_raised_with_its_message() -> None:
    with pytest.raises(StaleError, match="error 410") as raised:
        decode_event("Pod", error(410))
    assert raised.value.status == 410


def test_backoffs_are_endless_short_and_begin_again_after_a_success() -> None:
    backoffs, failed = Backoffs(), ClusterError("no")
    for _ in range(2):
        assert [backoffs.after(failed) for _ in range(6)] == [1.0, 2.0, 3.0, 5.0, 5.0, 5.0]
        backoffs.reset()
        assert [backoffs.after_end() for _ in range(6)] == [0.0, 1.0, 2.0, 3.0, 5.0, 5.0]
        backoffs.reset()
    assert backoffs.after(ClusterError("busy", status=429, retry_after=30.0)) == 30.0


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, False), (401, False), (403, False), (429, False), (500, False), (404, True), (410, True)],
)
def test_errors_that_invalidate_the_resource_version_cause_a_list(
    status: int, expected: bool
) -> None:
    assert must_list(ClusterError("no", status=status)) is expected
