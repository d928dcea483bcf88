"""A standby that has threads forks nothing: they would be missing in the fork."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

STANDBY = """
import threading, time
from ddp_agent import standby

def begin_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

say = standby._say

def say_and_go_on(words, **word):
    say(words, **word)
    if "ready" in word and {late}:
        begin_thread()

standby.import_all = lambda: {late} or begin_thread()
standby._say = say_and_go_on
standby.main()
"""


@dataclass(frozen=True)
class Ended:
    words: list[dict[str, Any]]
    code: int
    said: str


def asked_to_fork(*, late: bool) -> Ended:
    """A standby that gets a thread, either late or while it imports, with an order waiting."""
    (theirs, orders), (words, say) = os.pipe(), os.pipe()
    os.write(orders, json.dumps({"environment": {}, "arguments": []}).encode() + b"\n")
    os.close(orders)
    command = [sys.executable, "-c", STANDBY.format(late=late), str(theirs), str(say)]
    with subprocess.Popen(command, pass_fds=(theirs, say), stderr=subprocess.PIPE) as standby:
        for end in (theirs, say):
            os.close(end)
        with os.fdopen(words) as lines:
            heard = [json.loads(line) for line in lines]
        _, said = standby.communicate(timeout=20)
    return Ended(heard, standby.returncode, said.decode())


@pytest.mark.parametrize("late", [False, True])
def test_a_standby_with_threads_ends_with_the_reason_and_forks_nothing(late: bool) -> None:
    ended = asked_to_fork(late=late)
    assert [list(word) for word in ended.words] == [["ready"]] * late
    assert ended.code == 1
    assert ended.said == "ddp-agent: the standby has threads, attempts start cold\n"
