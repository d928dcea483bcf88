"""The goodput ledger of simulated runs with random faults and operators that are away."""

import os
import random
from dataclasses import dataclass, field

import pytest

from ddp_operator.api.goodput import Bucket
from ddp_operator.api.job import DDPJob
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_wire.messages import (
    AgentPhase,
    AgentStatus,
    CheckpointInfo,
    Failure,
    Heartbeat,
    Progress,
    RankPhase,
    Timeline,
    TrainingTimes,
)
from tests.operator.support import after, agent_status, all_pods, ended, new_job, plan_for, pod

STEPS, SAVE_EVERY = 300, 20
UPDATE, WAIT, SAVE = 0.5, 0.1, 0.3
"""Seconds of an update with its wait for data, of that wait, and of a checkpoint."""
FAULTS = ("rank of node 0", "rank of node 1", "pod of node 1")


@dataclass
class Attempt:
    """One attempt of the simulated ranks. Times are in seconds after NOW."""

    number: int
    start: float
    resumed: int
    fault: str | None
    last_step: int
    """Completed updates when the fault happens or the run is complete."""
    joined: float = field(init=False)
    first: float = field(init=False)
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.joined, self.first = self.start + 2.0, self.start + 3.5
        self.end = self._time_of(self.last_step) + 0.2

    def saves(self, step: int) -> int:
        """Return the number of checkpoints after the first update until a step."""
        return step // SAVE_EVERY - (self.resumed + 1) // SAVE_EVERY

    def _time_of(self, step: int) -> float:
        return self.first + (step - self.resumed - 1) * UPDATE + self.saves(step) * SAVE

    def step_at(self, time: float) -> int:
        done = self.resumed
        while done < self.last_step and self._time_of(done + 1) <= time:
            done += 1
        return done

    def statuses(self, now: float, polled: float) -> dict[int, AgentStatus]:
        """Return the agents' statuses: those of a running attempt are as old as the last poll."""
        time = now if self.over(now) else polled
        if time < self.start + 1.0:
            return {}
        return {node: self._status(node, time) for node in (0, 1) if self._has_status(node, time)}

    def over(self, now: float) -> bool:
        return now >= self.end

    def _has_status(self, node: int, now: float) -> bool:
        return not (self.over(now) and self.fault == "pod of node 1" and node == 1)

    def _status(self, node: int, time: float) -> AgentStatus:
        step, phase, failure = self.step_at(time), AgentPhase.STARTING, None
        if time >= self.joined:
            phase = AgentPhase.TRAINING
        if self.over(time):
            phase = AgentPhase.SUCCEEDED if self.fault is None else AgentPhase.FAILED
            failure = self._failure(node) if self.fault is not None else None
        saved = step // SAVE_EVERY * SAVE_EVERY
        return agent_status(
            node,
            attempt=self.number,
            phase=phase.value,
            failure=failure,
            timeline=Timeline(
                ordered=after(self.start).timestamp(), launched=after(self.start).timestamp()
            ),
            ranks=[self._rank(node, step, time)],
            progress=Progress(step=step, total_steps=STEPS) if step else None,
            checkpoint=CheckpointInfo(step=saved, path="/c", at=0.0) if saved else None,
        )

    def _failure(self, node: int) -> Failure:
        own = self.fault == f"rank of node {node}"
        at = after(self.end).timestamp()
        return Failure(attempt=self.number, at=at, rank=node, exit_code=1, secondary=not own)

    def _rank(self, node: int, step: int, time: float) -> Heartbeat:
        trained, found = step > self.resumed, None
        if trained and node == 0:
            updates = step - self.resumed - 1
            found = TrainingTimes(
                training_seconds=updates * (UPDATE - WAIT),
                data_wait_seconds=updates * WAIT,
                checkpoint_seconds=self.saves(step) * SAVE,
            )
        return Heartbeat(
            attempt=self.number,
            rank=node,
            local_rank=0,
            phase=RankPhase.TRAINING if time >= self.joined else RankPhase.STARTING,
            step=step,
            at=after(self._time_of(step) if trained else time).timestamp(),
            joined_at=after(self.joined).timestamp() if time >= self.joined else None,
            first_step_at=after(self.first).timestamp() if trained else None,
            resumed_from=self.resumed if time >= self.joined and self.resumed else None,
            training_times=found,
        )


class Run:
    """One run: its simulated ranks, and an operator that is away at random times."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{os.environ.get('DDP_SEED', '0')} {seed}")  # noqa: S311
        self.faults = self.rng.choices(FAULTS, k=self.rng.randrange(2, 6))
        self.job: DDPJob = new_job(nodes=2, maxRestarts=99, checkpoint={"claimName": "shared"})
        self.attempts: list[Attempt] = []
        self.now = self.polled = 0.0

    def play(self) -> None:
        """Let time pass until the job has finished."""
        while not is_finished(self.job.status):
            assert self.now < 3000, "the run does not end"
            self.now += self.rng.choice([0.2, 1.0, 1.0, 3.0, 5.0, 25.0])
            self.polled = max(self.polled, self.now - self.rng.uniform(0.0, 5.0))
            for _ in range(3):
                self._reconcile()
            if self.job.status.attempt > len(self.attempts):
                self.attempts.append(self._next_attempt())

    def _reconcile(self) -> None:
        attempt = self.attempts[-1] if self.attempts else None
        pods, statuses = all_pods(self.job, ready=False), {}
        if attempt is not None and attempt.number == self.job.status.attempt:
            statuses = attempt.statuses(self.now, self.polled)
            training = attempt.joined <= self.now and not attempt.over(self.now)
            pods = all_pods(self.job, ready=training)
            if attempt.over(self.now) and attempt.fault == "pod of node 1":
                pods = (
                    pods[0],
                    pod(self.job, 1, phase="Failed", termination=ended(137, at=after(attempt.end))),
                )
            elif attempt.over(self.now) and attempt.fault is None:
                pods = tuple(
                    pod(self.job, n, phase="Succeeded", termination=ended(0, final=statuses[n]))
                    for n in (0, 1)
                )
        plan = plan_for(self.job, pods, now=after(self.now), statuses=statuses)
        self.job = self.job.model_copy(update={"status": plan.status})

    def _next_attempt(self) -> Attempt:
        number = len(self.attempts) + 1
        reached = self.attempts[-1].last_step if self.attempts else 0
        resumed = reached // SAVE_EVERY * SAVE_EVERY
        fault = self.faults[number - 1] if number <= len(self.faults) else None
        last = STEPS
        if fault is not None:
            last = min(STEPS - 1, resumed + self.rng.randrange(SAVE_EVERY + 1, 3 * SAVE_EVERY))
        return Attempt(number, self.now, resumed, fault, last)

    def repeated(self) -> int:
        """Return the number of updates that the ranks have repeated."""
        found = reached = 0
        for attempt in self.attempts:
            found += max(0, min(attempt.last_step, reached) - attempt.resumed)
            reached = max(reached, attempt.last_step)
        return found


@pytest.mark.parametrize("seed", range(24))
def test_goodput_ledger_of_a_run_with_random_faults_is_exact(seed: int) -> None:
    run = Run(seed)
    run.play()
    status = run.job.status
    goodput, created = status.goodput, run.job.metadata.creation_timestamp
    assert goodput is not None
    assert created is not None
    assert status.completion_time is not None
    wall = 1000 * (status.completion_time - created).total_seconds()
    buckets = {bucket: goodput.milliseconds(bucket) for bucket in Bucket}
    assert status.attempt == len(run.faults) + 1
    assert sum(buckets.values()) == pytest.approx(wall, rel=0.01)
    assert goodput.redone_steps == run.repeated() > 0
    redone = 1000 * UPDATE * goodput.redone_steps
    assert buckets[Bucket.REDONE] == pytest.approx(redone, rel=0.25)
    useful = 1000 * (UPDATE - WAIT) * STEPS
    assert buckets[Bucket.TRAINING] == pytest.approx(useful, rel=0.1)
    saves = 1000 * SAVE * sum(one.saves(one.last_step) for one in run.attempts)
    assert buckets[Bucket.CHECKPOINT_STALL] == pytest.approx(saves, rel=0.25)
