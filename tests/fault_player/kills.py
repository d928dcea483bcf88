"""One job, struck again and again at random, must complete and lose nothing.

    python -m tests.fault_player.kills [--kills 30] [--seed 0] [--wheels DIR]

Runs on the real two-node cluster. A line per kill; ends non-zero, with the seed, when anything that
must hold does not.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_wire.contract import RankPhase
from tests.cluster.support import Job
from tests.fault_player import judge, strikes
from tests.fault_player.judge import Strike
from tests.fault_player.record import PodWatch, read_lives
from tests.harness import ending
from tests.harness.cluster import Cluster
from tests.tools import install
from tests.tools.install import SYSTEM_NAMESPACE, eventually

JSON = dict[str, Any]

NODES, RANKS = 2, 4
KINDS = ("rank", "pod", "agent", "operator", "kubelet")
HURRIED = 0.3
"""How often a kill does not wait until the run has got on since the one before."""
HURRY_SECONDS = (0.2, 3.0)
CALM_SECONDS = (0.0, 2.0)
KUBELET_SECONDS = (2.0, 20.0)
"""How long a killed kubelet stays away: its node may or may not count as lost by then."""
RECOVERY_SECONDS = 240.0
LAST_STEPS = 200
"""Updates that are left when the last kill has been survived."""
COUNTERS = ("attempt", "restarts", "infrastructureRestarts", "freeRestarts")


def manifest(name: str) -> JSON:
    """A job that goes on until it is told how many updates it shall be."""
    config = {
        "max_steps": 1_000_000,
        "global_batch": 256,
        "eval_every_steps": 1_000_000,
        "log": {"every_steps": 1},  # The judge wants to know of every update.
    }
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {
            "nodes": NODES,
            "procsPerNode": RANKS // NODES,
            "task": "ddp_trainer.tasks.miniresnet:build",
            "config": config,
            "checkpoint": {"claimName": install.CLAIM, "everySteps": 10, "keep": 5},
            "maxRestarts": 1000,
            "maxInfrastructureRestarts": 1000,
        },
    }


@dataclass
class Ordeal:
    """A job and everything that is done to it."""

    job: Job
    chance: random.Random
    say: Callable[[str], None]
    strikes: list[Strike] = field(default_factory=list)
    ended: dict[int, JSON] = field(default_factory=dict)
    """Entries of `status.attempts`, of which the status itself keeps ten."""
    violations: list[str] = field(default_factory=list)
    _counters: tuple[int, ...] = (0, 0, 0, 0)
    _away: list[threading.Thread] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""
        return self.job.cluster

    def look(self) -> JSON:
        """The status; what must hold at any time is checked on the way."""
        status = self.job.status
        counters = tuple(int(status.get(name, 0)) for name in COUNTERS)
        if any(now < before for now, before in zip(counters, self._counters, strict=True)):
            self.violations.append(f"counters went back from {self._counters} to {counters}")
        self._counters = counters
        self.ended |= {entry["number"]: entry for entry in status.get("attempts", [])}
        return status

    def wait_until_it_gets_on(self) -> None:
        """Until all ranks train and a step was saved that was not saved before this call."""
        before = saved_step(self.look())

        def gets_on() -> bool:
            status = self.look()
            if status.get("completionTime"):
                raise AssertionError(f"the job has ended: {self.job.row('-o', 'wide')}")
            return saved_step(status) > before and self.trains(status)

        eventually(gets_on, "the job trains and saves", RECOVERY_SECONDS)

    def trains(self, status: JSON) -> bool:
        """Whether all ranks of the current attempt do updates."""
        beats = [beat for _, beat in self.job.beats()]
        here = [b for b in beats if b.attempt == status.get("attempt") and b.first_step_at]
        return len({b.rank for b in here if b.phase is RankPhase.TRAINING}) == RANKS

    def strike(self, kind: str) -> None:
        """Play one fault on what can be struck now."""
        status = self.look()
        trained = self.trains(status)
        kind, target, at = self._play(kind)
        number, attempt = len(self.strikes) + 1, int(status.get("attempt", 0))
        self.strikes.append(Strike(number, kind, target, at, attempt, trained))
        state = "training" if trained else "recovering"
        step = saved_step(status)
        self.say(f"kill {number:2}  {kind:8} {target:12} attempt {attempt}, {state}, saved {step}")

    def _play(self, kind: str) -> tuple[str, str, float]:
        """The kind that was played, its target and when: a pod, where nothing else is there."""
        try:
            match kind:
                case "rank":
                    rank = self.chance.randrange(RANKS)
                    return kind, f"rank {rank}", strikes.kill_rank(self.job, rank)
                case "agent":
                    pod = self._some_pod()
                    at = strikes.kill_container(pod, "worker")
                    return kind, pod["metadata"]["name"], at
                case "operator":
                    return kind, *kill_operator(self.cluster)
                case "kubelet":
                    return kind, *self._kill_kubelet()
                case _:
                    pass
        except (LookupError, ProcessLookupError):
            pass  # What was to be struck is not there at this moment.
        name = f"{self.job.name}-{self.chance.randrange(NODES)}"
        return "pod", name, strikes.delete_pod(self.job, name)

    def _some_pod(self) -> JSON:
        pods = sorted(self.job.pods(), key=lambda pod: str(pod["metadata"]["name"]))
        if not pods:
            raise LookupError("there is no pod")
        return self.chance.choice(pods)

    def _kill_kubelet(self) -> tuple[str, float]:
        node = self.cluster.node(self.chance.choice(self.cluster.node_names))
        seconds = self.chance.uniform(*KUBELET_SECONDS)
        self.all_are_back()
        at = time.time()
        node.kill_kubelet()

        def come_back() -> None:
            time.sleep(seconds)
            node.start_kubelet()

        thread = threading.Thread(target=come_back)
        thread.start()
        self._away.append(thread)
        return f"{node.name} {seconds:.0f} s", at

    def all_are_back(self) -> None:
        """Wait until every kubelet that was killed has been started again."""
        while self._away:
            self._away.pop().join()

    def finish(self) -> None:
        """Tell the run how long it shall be, and wait for its end."""
        self.all_are_back()
        self.wait_until_it_gets_on()
        steps = saved_step(self.look()) + LAST_STEPS
        patch = {"spec": {"config": {"max_steps": steps}}}
        self.job.kubectl("patch", "ddpjob", self.job.name, "--type=merge", "-p", json.dumps(patch))
        try:
            eventually(lambda: bool(self.look().get("completionTime")), "the end", RECOVERY_SECONDS)
        except TimeoutError as error:
            self.violations.append(str(error))
        if self.job.reason != "Completed":
            self.violations.append(f"the job did not complete: {self.job.row('-o', 'wide')}")

    def judge(self, watch: PodWatch, operator_logs: str) -> list[str]:
        """Everything that does not hold, in sentences."""
        status = self.look()
        lives = read_lives(self.job.run_directory)
        edited = {n for n, entry in self.ended.items() if entry["reason"] == "SpecChanged"}
        found = [
            *self.violations,
            *judge.two_gangs(lives),
            *judge.lost_steps(lives),
            *judge.miscounted(status, free=1),
            *judge.unexplained(self.ended, self.strikes, edited),
            *watch.doubled(),
        ]
        if watch.broke:
            found.append("the watch of the pods broke off: it did not see everything")
        if not any(life.updates for life in lives):
            found.append(f"no attempt has told of an update below {self.job.run_directory}")
        if "Traceback" in operator_logs:
            found.append(f"the operator's log has a traceback:\n{operator_logs}")
        return found


def saved_step(status: JSON) -> int:
    """The newest committed step that the status knows of."""
    return int(status.get("lastCheckpoint", {}).get("step", 0))


def operator_pods(cluster: Cluster) -> list[JSON]:
    """The operator's pods."""
    found = cluster.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", "-o", "json").stdout
    pods: list[JSON] = json.loads(found)["items"]
    return pods


def kill_operator(cluster: Cluster) -> tuple[str, float]:
    """SIGKILL to the operator.

    Its pod is deleted after it: another one takes over at once, where the kubelet would wait twice
    as long with each crash.

    Raises:
        LookupError: None runs.
    """
    for pod in operator_pods(cluster):
        name: str = pod["metadata"]["name"]
        at = strikes.kill_container(pod, "operator")
        cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force"
        )
        return name.rpartition("-")[2], at
    raise LookupError("no operator runs")


class OperatorLogs:
    """The logs of all operators, followed from their first line: a dead one's are gone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._text: dict[str, str] = {}

    def read(self) -> str:
        """What all have said so far."""
        for pod in operator_pods(self._cluster):
            name = pod["metadata"]["name"]
            said = self._cluster.kubectl("-n", SYSTEM_NAMESPACE, "logs", name, check=False)
            self._text[name] = max(self._text.get(name, ""), said.stdout, key=len)
        return "\n".join(self._text.values())


def play(
    cluster: Cluster, namespace: str, kills: int, seed: int, say: Callable[[str], None]
) -> list[str]:
    """Strike a job so many times, let it complete, and judge. Returns what does not hold."""
    chance = random.Random(seed)  # noqa: S311 (what to strike, and when)
    kinds = [kind for _ in range(-(-kills // len(KINDS))) for kind in KINDS]
    chance.shuffle(kinds)
    logs = OperatorLogs(cluster)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        job = Job.apply(cluster, namespace, manifest("struck"))
        watch = stack.enter_context(PodWatch(job, Path(scratch) / "pods.json"))
        ordeal = Ordeal(job, chance, say)
        stack.callback(ordeal.all_are_back)
        hurried = True
        for kind in kinds[:kills]:
            # Never two in a row: three attempts without a saved step end a job, by design.
            hurried = not hurried and chance.random() < HURRIED
            if hurried:
                time.sleep(chance.uniform(*HURRY_SECONDS))
            else:
                ordeal.wait_until_it_gets_on()
                time.sleep(chance.uniform(*CALM_SECONDS))
            logs.read()
            ordeal.strike(kind)
        ordeal.finish()
        status = ordeal.look()
        counts = ", ".join(f"{name} {status.get(name, 0)}" for name in COUNTERS)
        say(f"{len(ordeal.strikes)} kills: {job.reason}, {counts}")
        found = ordeal.judge(watch, logs.read())
        if found:
            for number, entry in sorted(ordeal.ended.items()):
                say(f"attempt {number:2}  {entry.get('cause')}: {entry['message']}")
        return found


def main() -> None:
    """Bring a cluster up, play, say what was found."""
    parser = argparse.ArgumentParser(description="Strikes one job again and again at random.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    options = parser.parse_args()
    built = install.build_images(options.wheels)
    cluster = Cluster.up(2)
    try:
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.make_namespace(cluster, "kills")
        found = play(cluster, "kills", options.kills, options.seed, lambda s: print(s, flush=True))
    finally:
        cluster.down()
    if found:
        listed = "\n".join(f"  {sentence}" for sentence in found)
        sys.exit(f"{len(found)} violations; SEED={options.seed} repeats it:\n{listed}")
    print("held: completed, never two gangs, no committed step lost, every attempt accounted for")


if __name__ == "__main__":
    ending.script(main)
