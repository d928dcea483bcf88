"""Orders of attempts and sets of nodes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_wire import node_ranges
from ddp_wire.messages import AttemptOrder
from ddp_wire.orders import Order, order_from_text

NODES = st.frozensets(st.integers(0, 9998), max_size=40)
ORDERS = st.builds(Order, st.integers(1, 999_999_999)) | st.builds(
    Order, st.integers(1, 999_999_999), NODES.filter(bool), save=st.booleans()
)


@given(NODES)
def test_node_ranges_survive_writing_and_reading(nodes: frozenset[int]) -> None:
    assert node_ranges.from_text(node_ranges.to_text(nodes) or None) == nodes


def test_text_of_node_ranges_is_short() -> None:
    assert node_ranges.to_text([7, 0, 1, 2]) == "0-2,7"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-2", "1,,2", "10000", "²", " 1"])
def test_invalid_text_is_no_node_range(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        node_ranges.from_text(text)


@given(ORDERS)
def test_order_survives_writing_to_and_reading_from_the_annotation(order: Order) -> None:
    assert order_from_text(order.to_text()) == order


@given(ORDERS)
def test_order_survives_writing_to_and_reading_from_the_request(order: Order) -> None:
    text = AttemptOrder.of("uid", order).to_json()
    assert AttemptOrder.model_validate_json(text).order == order


def test_order_of_all_nodes_is_the_number_that_earlier_releases_read() -> None:
    assert Order(3).to_text() == "3"
    assert AttemptOrder.of("uid", Order(3)).to_json() == '{"jobUid":"uid","attempt":3}'


@pytest.mark.parametrize("text", ["", "x", "3:", "3:a", "3:0:", "3:0:keep", "²:0", "1234567890"])
def test_invalid_text_is_no_order(text: str) -> None:
    assert order_from_text(text) is None


def test_request_without_members_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        _ = AttemptOrder(job_uid="uid", attempt=3, members="").order
