"""Log lines end with context fields, as text and as JSON."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from ddp_operator.builders.defaults import Defaults
from ddp_operator.cluster.base import ClusterError, Key
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.logs import TextFormatter, add_log_fields, log_fields, present_fields
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity, work
from ddp_wire.logs import JsonFormatter
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import NOW, job_manifest

log = logging.getLogger("ddp_operator.test")


class Lines(logging.Handler):
    """Handler that formats each record at once, as a real one does."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[TextFormatter, lambda: JsonFormatter(present_fields)], ids=["text", "json"])
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    handler = Lines(request.param())
    logger = logging.getLogger("ddp_operator")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_line_ends_with_its_context_fields(lines: Lines) -> None:
    with log_fields(job="team-a/digits"):
        log.info("one")
        add_log_fields(attempt=2, cause="has a space", rank=None)
        log.info("two")
    log.info("three")
    if isinstance(lines.formatter, JsonFormatter):
        one, two, three = (json.loads(line) for line in lines.lines)
        assert (one["message"], one["job"]) == ("one", "team-a/digits")
        assert (two["attempt"], two["cause"]) == (2, "has a space")
        assert set(three) == {"time", "level", "logger", "message"}
    else:
        tails = [line.partition(" INFO ")[2] for line in lines.lines]
        assert tails == [
            "ddp_operator.test: one job=team-a/digits",
            'ddp_operator.test: two job=team-a/digits attempt=2 cause="has a space"',
            "ddp_operator.test: three",
        ]


def test_traceback_follows_the_text_line_or_is_a_json_field(lines: Lines) -> None:
    with log_fields(job="team-a/digits"):
        try:
            raise ValueError("two\nlines")  # noqa: TRY301
        except ValueError as error:
            log.exception("failed: %s", error)  # noqa: TRY401
    (entry,) = lines.lines
    if isinstance(lines.formatter, JsonFormatter):
        assert "\n" not in entry
        assert json.loads(entry)["exception"].startswith("Traceback")
    else:
        first, second = entry.splitlines()[:2]
        assert first.endswith("failed: two\\nlines job=team-a/digits")
        assert second.startswith("Traceback")


async def test_all_lines_of_a_reconcile_carry_the_job(lines: Lines) -> None:
    """This includes lines of the worker, the controller and their callees, for two jobs at once."""
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue[Key]()
    cluster.refusals["create"] = ClusterError("exceeded quota", status=403)
    for name in ("one", "two"):
        queue.add(cache.put_job(cluster.apply(job_manifest(name))))
    controller = Controller(
        cluster, cache, Defaults("mine:1", "Always"), lambda: NOW, agents=DirectStatuses(cluster)
    )
    tasks = [asyncio.ensure_future(work(queue, controller, WorkerActivity())) for _ in range(2)]
    async with asyncio.timeout(10):
        while sum("next try in" in line for line in lines.lines) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    failed = [line for line in lines.lines if "next try in" in line]
    if isinstance(lines.formatter, JsonFormatter):
        assert {json.loads(line)["job"] for line in lines.lines} == {"team-a/one", "team-a/two"}
        assert all(json.loads(line)["attempt"] == 1 for line in failed)
    else:
        assert all(" job=team-a/" in line for line in lines.lines)
        assert all(line.endswith(" attempt=1") for line in failed)


@pytest.mark.parametrize("character", "\n\r\x1b\x85\x00\x7f\u2028\u2029\u202e", ids=ascii)
def test_record_is_one_line_even_with_quoted_line_breaks(lines: Lines, character: str) -> None:
    with log_fields(job=f"a{character}b"):
        log.error("quotes %s", f"x{character}y")
        log.error("failed", exc_info=ValueError(f"{character}forged"))
    first, second = lines.lines
    assert len(first.splitlines()) == 1
    assert character == "\n" or character not in second
    assert character not in first
