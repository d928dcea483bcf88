"""Inject random faults into one job, which must complete and lose no committed step.

    python -m tests.fault_player.kills [--kills 30] [--seed 0] [--wheels DIR]

Runs on the real two-node cluster and prints a line per kill. The exit code is 1 with a list of
violations and the seed if a check fails.
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

from ddp_wire.messages import RankPhase
from tests.cluster.support import Job
from tests.fault_player import faults, run_checks
from tests.fault_player.record import PodWatch, read_attempts
from tests.fault_player.run_checks import InjectedFault
from tests.harness import ending, install
from tests.harness.cluster import Cluster
from tests.harness.install import SYSTEM_NAMESPACE, eventually, operator_pods

JSON = dict[str, Any]

NODES, RANKS = 2, 4
KINDS = ("rank", "pod", "agent", "operator", "kubelet")
OVERLAP_PROBABILITY = 0.3
"""Probability that a kill comes before the run has saved after the previous kill."""
OVERLAP_DELAY_SECONDS = (0.2, 3.0)
DELAY_SECONDS = (0.0, 2.0)
KUBELET_SECONDS = (2.0, 20.0)
"""Range of a kubelet's downtime, in seconds. Only after the longer times its node counts as
lost."""
RECOVERY_SECONDS = 240.0
LAST_STEPS = 200
"""Number of updates of the run after the recovery from the last kill."""
COUNTERS = ("attempt", "restarts", "infrastructureRestarts", "freeRestarts")


def manifest(name: str) -> JSON:
    """Return a job that trains until its `max_steps` is edited."""
    config = {
        "max_steps": 1_000_000,
        "global_batch": 256,
        "eval_every_steps": 1_000_000,
        "log": {"every_steps": 1, "format": "json"},  # The checks need the time of every update.
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
class KillRun:
    """One job, the faults injected into it, and the violations found."""

    job: Job
    rng: random.Random
    print_line: Callable[[str], None]
    injected: list[InjectedFault] = field(default_factory=list)
    ended: dict[int, JSON] = field(default_factory=dict)
    """Entries of `status.attempts`, collected because the status keeps only the last ten."""
    violations: list[str] = field(default_factory=list)
    _counters: tuple[int, ...] = (0, 0, 0, 0)
    _restart_threads: list[threading.Thread] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the job."""
        return self.job.cluster

    def read_status(self) -> JSON:
        """Return the status, after checks that hold at any time."""
        status = self.job.status
        counters = tuple(int(status.get(name, 0)) for name in COUNTERS)
        if any(now < before for now, before in zip(counters, self._counters, strict=True)):
            self.violations.append(f"counters decreased from {self._counters} to {counters}")
        self._counters = counters
        self.ended |= {entry["number"]: entry for entry in status.get("attempts", [])}
        return status

    def wait_until_training_and_saved(self) -> None:
        """Wait until all ranks train and a newer step is committed."""
        before = saved_step(self.read_status())

        def has_saved() -> bool:
            status = self.read_status()
            if status.get("completionTime"):
                raise AssertionError(f"the job ended early: {self.job.row('-o', 'wide')}")
            return saved_step(status) > before and self.trains(status)

        eventually(has_saved, "the job trains and saves", RECOVERY_SECONDS)

    def trains(self, status: JSON) -> bool:
        """Return whether all ranks of the current attempt train."""
        heartbeats = [heartbeat for _, heartbeat in self.job.heartbeats()]
        here = [b for b in heartbeats if b.attempt == status.get("attempt") and b.first_step_at]
        return len({b.rank for b in here if b.phase is RankPhase.TRAINING}) == RANKS

    def inject(self, kind: str) -> None:
        """Inject one fault into a target that exists now."""
        status = self.read_status()
        trained = self.trains(status)
        kind, target, at = self._inject(kind)
        number, attempt = len(self.injected) + 1, int(status.get("attempt", 0))
        self.injected.append(InjectedFault(number, kind, target, at, attempt, trained))
        state = "training" if trained else "recovering"
        step = saved_step(status)
        self.print_line(
            f"kill {number:2}  {kind:8} {target:12} attempt {attempt}, {state}, saved {step}"
        )

    def _inject(self, kind: str) -> tuple[str, str, float]:
        """Inject a fault, or delete a pod without such a target. Return kind, target and time."""
        try:
            match kind:
                case "rank":
                    rank = self.rng.randrange(RANKS)
                    return kind, f"rank {rank}", faults.kill_rank(self.job, rank)
                case "agent":
                    pod = self._random_pod()
                    at = faults.kill_container(pod, "worker")
                    return kind, pod["metadata"]["name"], at
                case "operator":
                    return kind, *kill_operator(self.cluster)
                case "kubelet":
                    return kind, *self._kill_kubelet()
                case _:
                    pass
        except (LookupError, ProcessLookupError):
            pass  # The target does not exist at this moment.
        name = f"{self.job.name}-{self.rng.randrange(NODES)}"
        return "pod", name, faults.delete_pod(self.job, name)

    def _random_pod(self) -> JSON:
        pods = sorted(self.job.pods(), key=lambda pod: str(pod["metadata"]["name"]))
        if not pods:
            raise LookupError("the job has no pod")
        return self.rng.choice(pods)

    def _kill_kubelet(self) -> tuple[str, float]:
        node = self.cluster.node(self.rng.choice(self.cluster.node_names))
        seconds = self.rng.uniform(*KUBELET_SECONDS)
        self.wait_for_kubelets()
        at = time.time()
        node.kill_kubelet()

        def restart_kubelet() -> None:
            time.sleep(seconds)
            node.start_kubelet()

        thread = threading.Thread(target=restart_kubelet)
        thread.start()
        self._restart_threads.append(thread)
        return f"{node.name} {seconds:.0f} s", at

    def wait_for_kubelets(self) -> None:
        """Wait until every killed kubelet has been started again."""
        while self._restart_threads:
            self._restart_threads.pop().join()

    def finish(self) -> None:
        """Set the run's last step, and wait for its end."""
        self.wait_for_kubelets()
        self.wait_until_training_and_saved()
        steps = saved_step(self.read_status()) + LAST_STEPS
        patch = {"spec": {"config": {"max_steps": steps}}}
        self.job.kubectl("patch", "ddpjob", self.job.name, "--type=merge", "-p", json.dumps(patch))
        try:
            eventually(
                lambda: bool(self.read_status().get("completionTime")),
                "the job ends",
                RECOVERY_SECONDS,
            )
        except TimeoutError as error:
            self.violations.append(str(error))
        if self.job.reason != "Completed":
            self.violations.append(f"the job did not complete: {self.job.row('-o', 'wide')}")

    def check(self, watch: PodWatch, operator_logs: str) -> list[str]:
        """Return a message for each violation."""
        status = self.read_status()
        attempts = read_attempts(self.job.run_directory)
        edited = {n for n, entry in self.ended.items() if entry["reason"] == "SpecChanged"}
        found = [
            *self.violations,
            *run_checks.overlapping_attempts(attempts),
            *run_checks.lost_steps(attempts),
            *run_checks.wrong_counters(status, free=1),
            *run_checks.unexplained_ends(self.ended, self.injected, edited),
            *watch.duplicate_pods(),
        ]
        if watch.ended_early:
            found.append("the pod watch ended early, so its record is incomplete")
        if not any(attempt.updates for attempt in attempts):
            found.append(f"no attempt logged an update below {self.job.run_directory}")
        if "Traceback" in operator_logs:
            found.append(f"the operator's log has a traceback:\n{operator_logs}")
        return found


def saved_step(status: JSON) -> int:
    """Return the newest committed step in the status; 0 before the first one."""
    return int(status.get("lastCheckpoint", {}).get("step", 0))


def kill_operator(cluster: Cluster) -> tuple[str, float]:
    """Kill the operator with SIGKILL and delete its pod. Return its name and the time.

    The deleted pod is replaced at once. The kubelet would restart its container with a growing
    delay.

    Raises:
        LookupError: No operator runs.
    """
    for pod in operator_pods(cluster):
        name: str = pod["metadata"]["name"]
        at = faults.kill_container(pod, "operator")
        cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force"
        )
        return name.rpartition("-")[2], at
    raise LookupError("no operator is running")


class OperatorLogs:
    """The logs of all operators, collected while each of them exists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._text: dict[str, str] = {}

    def read(self) -> str:
        """Return the logs of all operators so far."""
        for pod in operator_pods(self._cluster):
            name = pod["metadata"]["name"]
            logs = self._cluster.kubectl("-n", SYSTEM_NAMESPACE, "logs", name, check=False)
            self._text[name] = max(self._text.get(name, ""), logs.stdout, key=len)
        return "\n".join(self._text.values())


def run_kills(
    cluster: Cluster, namespace: str, kills: int, seed: int, print_line: Callable[[str], None]
) -> list[str]:
    """Inject faults into a job, let it complete, and return the violations."""
    rng = random.Random(seed)  # noqa: S311 (kinds and times of faults)
    kinds = [kind for _ in range(-(-kills // len(KINDS))) for kind in KINDS]
    rng.shuffle(kinds)
    logs = OperatorLogs(cluster)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        job = Job.apply(cluster, namespace, manifest("random-kills"))
        watch = stack.enter_context(PodWatch(job, Path(scratch) / "pods.json"))
        run = KillRun(job, rng, print_line)
        stack.callback(run.wait_for_kubelets)
        overlaps = True
        for kind in kinds[:kills]:
            # Never twice in a row, because three attempts without a committed step fail a job.
            overlaps = not overlaps and rng.random() < OVERLAP_PROBABILITY
            if overlaps:
                time.sleep(rng.uniform(*OVERLAP_DELAY_SECONDS))
            else:
                run.wait_until_training_and_saved()
                time.sleep(rng.uniform(*DELAY_SECONDS))
            logs.read()
            run.inject(kind)
        run.finish()
        status = run.read_status()
        counts = ", ".join(f"{name} {status.get(name, 0)}" for name in COUNTERS)
        print_line(f"{len(run.injected)} kills: {job.reason}, {counts}")
        found = run.check(watch, logs.read())
        if found:
            for number, entry in sorted(run.ended.items()):
                print_line(f"attempt {number:2}  {entry.get('cause')}: {entry['message']}")
        return found


def main() -> None:
    """Start a cluster, inject the faults and print the violations."""
    parser = argparse.ArgumentParser(description="Injects random faults into one job.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED", "0")))
    parser.add_argument("--wheels", type=Path, default=Path("../shared/wheels"))
    options = parser.parse_args()
    built = install.build_images(options.wheels)
    cluster = Cluster.up(2)
    try:
        install.load_images(cluster, built)
        install.install_chart(cluster)
        install.create_namespace(cluster, "kills")
        found = run_kills(
            cluster, "kills", options.kills, options.seed, lambda s: print(s, flush=True)
        )
    finally:
        cluster.down()
    if found:
        listed = "\n".join(f"  {sentence}" for sentence in found)
        sys.exit(f"{len(found)} violations; SEED={options.seed} repeats this run:\n{listed}")
    print(
        "ok: the job completed, attempts never overlapped, no committed step was lost, and every"
        " attempt has a known end"
    )


if __name__ == "__main__":
    ending.script(main)
