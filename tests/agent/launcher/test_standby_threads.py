"""A standby with several threads forks nothing, because a fork has only one of them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

STANDBY = """
import threading, time
from ddp_agent.launcher import standby

def start_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

send = standby._send

def send_and_start_thread(messages, **message):
    send(messages, **message)
    if "ready" in message and {late}:
        start_thread()

standby.import_all = lambda: {late} or start_thread()
standby._send = send_and_start_thread
standby.main()
"""


@dataclass(frozen=True)
class Ended:
    messages: list[dict[str, Any]]
    code: int
    error: str


def run_with_thread(*, late: bool) -> Ended:
    """Run a standby that gets a second thread, either during or after its imports.

    The order to fork is in its pipe from the start.
    """
    (orders_in, orders), (messages, messages_out) = os.pipe(), os.pipe()
    os.write(orders, json.dumps({"environment": {}, "arguments": []}).encode() + b"\n")
    os.close(orders)
    command = [sys.executable, "-c", STANDBY.format(late=late), str(orders_in), str(messages_out)]
    with subprocess.Popen(
        command, pass_fds=(orders_in, messages_out), stderr=subprocess.PIPE
    ) as standby:
        for end in (orders_in, messages_out):
            os.close(end)
        with os.fdopen(messages) as lines:
            received = [json.loads(line) for line in lines]
        _, error = standby.communicate(timeout=20)
    return Ended(received, standby.returncode, error.decode())


@pytest.mark.parametrize("late", [False, True])
def test_standby_with_several_threads_exits_with_the_reason_and_forks_nothing(late: bool) -> None:
    ended = run_with_thread(late=late)
    assert [list(message) for message in ended.messages] == [["ready"]] * late
    assert ended.code == 1
    problem = "the standby has several threads and cannot fork safely, so attempts start cold"
    assert ended.error == f"ddp-agent: {problem}\n"
