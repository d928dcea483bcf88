"""Lists whose JSON is decoded one object at a time."""

import json
import threading
import tracemalloc
from typing import Any

import pytest

from ddp_operator.cluster.base import Manifest
from ddp_operator.cluster.kube.lists import LARGE, DecoderThread, decode_list, decode_nothing
from ddp_operator.cluster.kube.used_fields import keep_used_fields

ITEMS: list[Manifest] = [{"a": [{"b": ']}, \\"'}]}, {}, {"é": None}]
METADATA = {"resourceVersion": "9", "continue": ""}


def keep_all(item: Manifest) -> Manifest:
    """Return an item as it is."""
    return item


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("items", [[], ITEMS[:1], ITEMS])
@pytest.mark.parametrize("items_last", [False, True], ids=["items first", "items last"])
def test_list_decoder_returns_the_same_as_the_json_module(
    indent: int | None, items: list[Manifest], items_last: bool
) -> None:
    parts: list[tuple[str, Any]] = [("items", items), ("metadata", METADATA)]
    document = dict(reversed(parts) if items_last else parts)
    assert decode_list(json.dumps(document, indent=indent), keep_all) == document


def test_list_decoder_keeps_null_in_place_of_items() -> None:
    assert decode_list('{"items": null, "kind": "PodList"}', keep_all) == {
        "items": None,
        "kind": "PodList",
    }


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"items": [', '{"items": [{}', '{"items": [{} {}]}', '{"a" 1}', "<p>"]
)
def test_text_that_is_no_json_object_raises_an_error(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        decode_list(text, keep_all)


def test_decoder_holds_unused_fields_of_only_one_object_at_a_time() -> None:
    unused: Manifest = {f"f:{n}": {} for n in range(1000)}
    metadata = {"name": "p", "namespace": "a", "uid": "u", "managedFields": [unused]}
    text = json.dumps({"items": [{"metadata": metadata}] * 100})
    tracemalloc.start()
    found = decode_list(text, lambda pod: keep_used_fields("Pod", pod))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.clear_traces()
    tracemalloc.start()
    json.loads(text)
    _, at_once = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found["items"]) == 100
    assert peak < at_once / 20


@pytest.mark.parametrize(("size", "outside"), [(LARGE - 1, False), (LARGE, True)])
async def test_large_answers_are_decoded_outside_the_event_loop(size: int, outside: bool) -> None:
    threads = []

    def decode(text: bytes) -> Manifest:
        threads.append(threading.current_thread())
        return {"size": len(text)}

    decoder = DecoderThread()
    assert await decoder.decode(bytes(size), decode) == {"size": size}
    decoder.close()
    assert (threads != [threading.main_thread()]) == outside
    if outside:
        threads[0].join(60)
    assert threads[0].is_alive() != outside


async def test_large_answer_that_is_not_json_raises_a_value_error() -> None:
    decoder = DecoderThread()
    with pytest.raises(ValueError, match="not a JSON object"):
        await decoder.decode(b" " * LARGE, decode_nothing)
    decoder.close()
