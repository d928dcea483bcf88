"""Ranks for tests, forked from a server process that has already imported torch.

The ranks get the environment that torchrun would set. Their start takes hundredths of a second
instead of seconds. Only ranks of tests with the mark `gpu` see GPUs; all others train on the CPU.
"""

import importlib
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ddp_trainer.commands.main import main
from ddp_wire.contract import Env
from tests.garbage import exempt_all_objects
from tests.harness.one_gpu import share_one_gpu
from tests.harness.ports import free_port

HERE = Path(__file__).parent
_LOOK_SECONDS = 0.5
"""Seconds between two looks at a rank that may hang. No loop of a rank sleeps longer."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["ddp_trainer.train", "torch._dynamo"])


@dataclass
class Gang:
    """All ranks of one attempt."""

    processes: Sequence[BaseProcess]
    folder: Path

    def wait(self, timeout: float = 60) -> list[int | None]:
        """Return exit codes by rank, negative for a signal. Kill late ranks at the time-out."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        assert not late, f"still running: {self.folder}\n{self.err(0)}\n{self.out(0)}"
        return [process.exitcode for process in self.processes]

    def out(self, rank: int) -> str:
        return (self.folder / f"{rank}.out").read_text()

    def err(self, rank: int) -> str:
        return (self.folder / f"{rank}.err").read_text()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events of rank 0."""
        found = [json.loads(line) for line in self.out(0).splitlines()]
        return [event for event in found if kind in (None, event["event"])]

    def wait_until(self, ready: Callable[[], bool], timeout: float = 30) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + timeout
        while not ready():
            assert time.monotonic() < deadline, f"time-out: {self.err(0)}\n{self.out(0)}"
            assert any(process.is_alive() for process in self.processes), self.err(0)
            time.sleep(0.01)

    def sleeps(self, rank: int) -> bool:
        """Return whether the main thread of a rank sleeps for long, as it does when a task hangs.

        A loop that polls sleeps as well, and so does `time.sleep(0)` for a moment, but they wake up
        between two looks.
        """
        process = Path(f"/proc/{self.processes[rank].pid}")
        before = _waits(process)
        time.sleep(_LOOK_SECONDS)
        return "nanosleep" in (process / "wchan").read_text() and _waits(process) == before

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


def _waits(process: Path) -> str:
    """Return how many times the main thread of a process has begun to wait, as a line of text."""
    (line,) = re.findall("^voluntary_ctxt.*$", (process / "status").read_text(), re.MULTILINE)
    return str(line)


class Launcher:
    """Launcher of gangs, which it kills at the end of the test."""

    def __init__(self, folder: Path, *, sees_gpus: bool = False) -> None:
        self._folder = folder
        self._sees_gpus = sees_gpus
        self._gangs: list[Gang] = []

    def train(self, *arguments: str, world: int | None = 1, **environ: str) -> Gang:
        """Start `ddp-trainer train`. With a world of None there is no rendezvous."""
        return self.call(
            "rank_processes:run_command", ["train", *arguments], world=world, **environ
        )

    def call(self, function: str, argument: Any, world: int | None = 1, **environ: str) -> Gang:
        """Call `module:function(argument)` on every rank."""
        folder = self._folder / f"gang-{len(self._gangs)}"
        folder.mkdir()
        port = str(free_port())
        processes = []
        for rank in range(world or 1):
            variables = _variables(rank, world, port) if world else {}
            if not self._sees_gpus:
                variables["CUDA_VISIBLE_DEVICES"] = ""
            elif world:
                variables |= share_one_gpu(f"rank-{rank}")
            variables["TORCHELASTIC_ERROR_FILE"] = str(folder / f"{rank}.error.json")
            arguments = (function, argument, variables | environ, str(folder / str(rank)))
            processes.append(_CONTEXT.Process(target=_rank, args=arguments))
            processes[-1].start()
        self._gangs.append(Gang(processes, folder))
        return self._gangs[-1]

    def close(self) -> None:
        for gang in self._gangs:
            for process in gang.processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _variables(rank: int, world: int, port: str) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return {n: str(value) for n, value in names.items()} | address


def _rank(function: str, argument: Any, environ: dict[str, str], stem: str) -> None:
    exempt_all_objects()
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(stem + suffix, os.O_WRONLY | os.O_CREAT), descriptor)
    for name in [name for name in os.environ if name.startswith("DDP_")]:
        del os.environ[name]
    os.environ.update({Env.LOG_FORMAT: "json"} | environ)
    module, _, name = function.partition(":")
    sys.exit(getattr(importlib.import_module(module), name)(argument))


def run_command(arguments: list[str]) -> int:
    return main(arguments)


def run_node(arguments: list[str]) -> int:
    """Train as the first rank of a node of its own, with its own folder of records.

    Args:
        arguments: JSON list of the folders by rank, then the arguments of `train`.
    """
    os.environ["DDP_RECORDS_DIR"] = json.loads(arguments[0])[int(os.environ["RANK"])]
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return main(["train", *arguments[1:]])
