"""The report of `make faults` names the fault that a test plays."""

import pytest

from tests.fault_player import report


def test_report_line_of_a_test_begins_with_its_fault(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    line = report.line(request.node, "worker pod deleted", "ok", 1.25)
    assert line.split() == ["-", "ok", "1.2", "s", "worker", "pod", "deleted:", name]
    assert report.line(request.node, "", "ok", 0.0).endswith(f"s  {name}")


@pytest.mark.parametrize("world", [1, 2])
def test_only_tests_of_the_fault_matrix_are_selected(
    request: pytest.FixtureRequest, world: int
) -> None:
    this = request.node.nodeid.removesuffix(f"[{world}]")
    assert report.selected([request.node], {this: "a fault"}) == [request.node]
    assert report.selected([request.node], {f"{this}s": "a fault"}) == []


def test_sweep_test_is_selected_without_a_row_in_the_fault_matrix(
    request: pytest.FixtureRequest,
) -> None:
    request.node.add_marker("sweep")
    assert report.selected([request.node], ()) == [request.node]
