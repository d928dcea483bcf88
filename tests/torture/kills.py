"""Kill ranks and pods of whole runs at random points, and compare the final weights.

The run is one of `ddpjob run`: the operator's controller, agents and ranks are those of a cluster,
and the pods are processes. The killed run must end with the bits of an undisturbed one, and no
attempt may start from an older state than the newest whole one.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ddp_operator.api.base import API_VERSION, KIND
from ddp_wire.contract import Env

KILLS = 200
PER_RUN = 50
"""Kills of one run, after which its weights are compared."""
NODES, PROCESSES = 2, 2
STEPS_PER_KILL = 14
SAVE_EVERY = 12
KINDS = (
    "rank", "rank 0", "pod", "pod of rank 0", "two ranks at once", "all ranks at once",
    "during a save", "during a survivors' write", "during a resume",
)  # fmt: skip
ROOT = Path(__file__).parents[2]
_SECONDS = 120.0
_POLL_SECONDS = 0.001
_CLAIM = "shared"


def job(home: Path, steps: int, seconds: float) -> dict[str, Any]:
    """Return the manifest of a run."""
    config = {
        "max_steps": steps,
        "global_batch": 8,
        "ema": {"decay": 0.9},
        "task": {
            "samples": 64, "eval_samples": 0, "dropout": 0.2, "noise": 0.1,
            "notes": str(home / "notes"), "update_seconds": seconds,
        },
        "log": {"every_steps": 1000, "format": "json"},
        "eval_every_steps": 10**6,
    }  # fmt: skip
    spec = {
        "nodes": NODES,
        "procsPerNode": PROCESSES,
        "task": "tests.torture.killed_task:build",
        "config": config,
        "maxRestarts": 10_000,
        "maxInfrastructureRestarts": 10_000,
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "checkpoint": {"claimName": _CLAIM, "everySteps": SAVE_EVERY, "keep": 3},
    }
    metadata = {"name": name_of(home), "namespace": "default"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def name_of(home: Path) -> str:
    """Return the name of a run's job. No two runs share it, because they would share records."""
    return f"kills-{os.getpid()}-{home.name}"


@dataclass(slots=True)
class Killer:
    """A local run, and what kills its processes."""

    home: Path
    rng: random.Random
    violations: list[str] = field(default_factory=list)
    hit: dict[str, int] = field(default_factory=dict)
    """Kills by kind."""

    def play(self, kinds: list[str]) -> None:
        """Run a job, kill something for each kind, and let the job complete."""
        steps = STEPS_PER_KILL * (len(kinds) + 1)
        run = _started(self.home, steps, seconds=0.01)
        try:
            for number, kind in enumerate(kinds):
                # Each kill needs progress before it: three attempts without any fail a job.
                self._wait(run, partial(self._reached, STEPS_PER_KILL * number + 3))
                time.sleep(self.rng.uniform(0.0, 0.1))
                self._kill(run, kind)
            code = run.wait(_SECONDS + steps * 0.1)
            if code:
                self.violations.append(f"the run ended with {code}: {_tail(self.home)}")
        except TimeoutError as error:
            self.violations.append(f"{error}: {_tail(self.home)}")
        finally:
            _end(run, self.home)
        self.violations += older_starts(self.home)

    def _kill(self, run: "subprocess.Popen[bytes]", kind: str) -> None:
        """Kill as a kind says. A moment that does not come counts as a kill of a rank."""
        attempt = self._attempt()
        ranks = range(NODES * PROCESSES)
        match kind:
            case "rank":
                hit = self._kill_ranks(self.rng.choice(ranks[1:]))
            case "rank 0":
                hit = self._kill_ranks(0)
            case "pod":
                hit = self._kill_pod(NODES - 1)
            case "pod of rank 0":
                hit = self._kill_pod(0)
            case "two ranks at once":
                hit = self._kill_ranks(*self.rng.sample(ranks, 2))
            case "all ranks at once":
                hit = self._kill_ranks(*ranks)
            case "during a save":
                hit = self._sees(lambda: any(self._saves()), 5.0)
                hit = self._kill_ranks(0) and hit
            case "during a survivors' write":
                self._kill_ranks(self.rng.choice(ranks))
                hit = self._sees(lambda: any(self._pending()), 2.0) and self._kill_writers()
            case _:
                self._kill_ranks(self.rng.choice(ranks))
                self._wait(run, lambda: self._attempt() > attempt)
                time.sleep(self.rng.uniform(0.0, 0.3))
                hit = self._kill_ranks(self.rng.choice(ranks), attempt=self._attempt())
        name = kind if hit else f"{kind}: too late"
        self.hit[name] = self.hit.get(name, 0) + 1
        self._wait(run, lambda: self._attempt() > attempt)

    def _kill_ranks(self, *ranks: int, attempt: int | None = None) -> bool:
        """Kill ranks at once. Return whether all of them ran."""
        found = [self._rank(rank) for rank in ranks]
        pids = [pid for number, pid in found if attempt is None or number == attempt]
        return _killed(pids) == len(ranks)

    def _kill_writers(self) -> bool:
        """Kill the ranks that write a record now."""
        pids = []
        for owner in self._pending(".owner"):
            with contextlib.suppress(OSError, ValueError):
                pids.append(int(owner.read_text().split()[0]))
        return _killed(pids) > 0

    def _kill_pod(self, node: int) -> bool:
        """Kill all processes of a pod at once, as the loss of a pod does."""
        pods: dict[str, list[int]] = {}
        for pid, variables in processes(self.home):
            if variables.get(Env.NODE_INDEX) == str(node):
                pods.setdefault(variables[Env.POD_INFO_DIR], []).append(pid)
        return _killed([pid for pids in pods.values() for pid in pids]) > 1

    def _rank(self, rank: int) -> tuple[int, int]:
        """Return attempt and process id of a rank."""
        with contextlib.suppress(OSError):
            attempt, pid = (self.home / "notes" / "ranks" / str(rank)).read_text().split()
            return int(attempt), int(pid)
        return -1, -1

    def _reached(self, step: int) -> bool:
        return self._step() >= step

    def _attempt(self) -> int:
        """Return the newest attempt of which all ranks have begun."""
        return min(self._rank(rank)[0] for rank in range(NODES * PROCESSES))

    def _step(self) -> int:
        """Return the newest step, if the newest attempt has made it; else -1."""
        with contextlib.suppress(OSError):
            attempt, step = (self.home / "notes" / "step").read_text().split()
            return int(step) if int(attempt) == self._attempt() else -1
        return -1

    def _saves(self) -> list[Path]:
        """Return the checkpoints that are being written or deleted."""
        return list((self.home / name_of(self.home) / "volumes").glob("*/*/step-*.tmp"))

    def _pending(self, suffix: str = "") -> list[Path]:
        """Return the records that are being written."""
        uid = uuid.uuid5(uuid.NAMESPACE_URL, f"default/{name_of(self.home)}")
        return list(Path("/dev/shm").glob(f"ddp-records-*-{uid}-*/step-*.tmp{suffix}"))

    def _sees(self, ready: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if ready():
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _wait(self, run: "subprocess.Popen[bytes]", ready: Callable[[], bool]) -> None:
        """Wait for a condition while the run lasts.

        Raises:
            TimeoutError: If the run ends, or takes too long.
        """
        deadline = time.monotonic() + _SECONDS
        while not ready():
            if run.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the run (exit code {run.poll()}) is at step {self._step()}")
            time.sleep(0.01)


def _killed(pids: list[int]) -> int:
    """Kill processes. Return how many of them ran."""
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if pid > 1:
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count


def _started(home: Path, steps: int, seconds: float) -> "subprocess.Popen[bytes]":
    """Start `ddpjob run` in a folder."""
    for folder in ("ranks", "floors"):
        (home / "notes" / folder).mkdir(parents=True)
    (home / "job.yaml").write_text(yaml.safe_dump(job(home, steps, seconds)))
    start = "from ddp_operator.cli.entry import main; main()"
    command = [sys.executable, "-c", start, "run", str(home / "job.yaml"), "--dir", str(home)]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("DDP_")}
    with (home / "output.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)


def _end(run: "subprocess.Popen[bytes]", home: Path) -> None:
    """Kill what is left of a run."""
    run.kill()
    run.wait()
    _killed([pid for pid, _ in processes(home)])


def processes(home: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the processes of the pods of a run, with the variables of their start."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            if variables.get(Env.POD_INFO_DIR, "").startswith(f"{home}/"):
                found.append((int(folder.name), variables))
    return found


def older_starts(home: Path) -> list[str]:
    """Return a sentence for each attempt that started from an older state than it could."""
    found, resumed = [], dict[int, int]()
    for log in (home / name_of(home) / "logs").glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            event = json.loads(match[0]) if (match := re.search(r'\{"event".*\}', line)) else {}
            if event.get("event") in {"start", "resume"}:
                resumed[event["attempt"]] = event.get("step", 0)
    for file in (home / "notes" / "floors").iterdir():
        floor, step = int(file.read_text()), resumed.get(int(file.name))
        if step is not None and step < floor:
            found.append(f"attempt {file.name} began at step {step}, not at the whole {floor}")
    return found


def final_state(home: Path) -> dict[str, bytes]:
    """Return the tensors of the newest checkpoint of a run, by file."""
    newest = max((home / name_of(home) / "volumes").glob("*/*/step-*"), key=lambda path: path.name)
    return {path.name: path.read_bytes() for path in newest.rglob("*.safetensors")}


def _tail(home: Path) -> str:
    return (home / "output.txt").read_text(errors="replace")[-1500:]


def run(kills: int, seed: int) -> list[str]:
    """Kill so many times, in runs of `PER_RUN` kills. Return a sentence for each violation."""
    rng = random.Random(seed)  # noqa: S311 (faults)
    violations: list[str] = []
    began, hit, done = time.monotonic(), dict[str, int](), 0
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        whole: dict[int, dict[str, bytes]] = {}
        while done < kills:
            number = min(PER_RUN, kills - done)
            kinds = [KINDS[(done + index) % len(KINDS)] for index in range(number)]
            rng.shuffle(kinds)
            home = Path(folder).resolve() / f"run-{done}"
            home.mkdir()
            killer = Killer(home, rng)
            killer.play(kinds)
            if number not in whole:
                whole[number] = _undisturbed(Path(folder).resolve() / f"whole-{number}", number)
            violations += [f"run {home.name}: {sentence}" for sentence in killer.violations]
            if not killer.violations and final_state(home) != whole[number]:
                violations.append(f"run {home.name}: the final weights differ")
            for kind, count in killer.hit.items():
                hit[kind] = hit.get(kind, 0) + count
            done += number
    for sentence in violations:
        print(f"BAD  {sentence}", file=sys.stderr, flush=True)
    print("\n| killed | times |\n| --- | --- |")
    for kind, count in sorted(hit.items()):
        print(f"| {kind} | {count} |")
    print(f"{sum(hit.values())} kills in {time.monotonic() - began:.0f} s", flush=True)
    return violations


def _undisturbed(home: Path, kills: int) -> dict[str, bytes]:
    """Return the final weights of a run of the same length that nothing disturbs."""
    home.mkdir()
    started = _started(home, STEPS_PER_KILL * (kills + 1), seconds=0.0)
    try:
        code = started.wait(_SECONDS * 10)
    finally:
        _end(started, home)
    if code:
        raise AssertionError(f"the undisturbed run ended with {code}: {_tail(home)}")
    return final_state(home)
