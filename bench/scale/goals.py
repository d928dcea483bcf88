"""Compare the figures of the benchmark with their goals, and print the table."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles

from bench.scale.conduct import Conduct
from bench.scale.loads import ManyJobs, OneJob
from bench.scale.neighbours import Neighbours
from bench.scale.peers import Comparison
from bench.scale.policy import PolicyCost
from bench.scale.starts import LARGE_JOBS, LARGE_NODES, Starts

_FURTHER_REQUESTS = 8
_BARE_RATIO = 1.2
_NEIGHBOUR_RATIO = 1.2
_PEER_RATIO = 0.85
_POLICY_RATIOS = {"the operator": 1.5, "an administrator": 1.25}
_LARGEST_STATUS = 32_768
_FIRST_POD_SECONDS = 2.0
_RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """One measured value. `goal` is the largest permitted value, or None without a goal."""

    load: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of the value, or None if the value itself is compared with the goal."""

    @property
    def missed(self) -> bool:
        """Return whether the value is above its goal, with its whole interval if it has one."""
        least = self.value if self.interval is None else self.interval[0]
        return self.goal is not None and least > self.goal


def of_one_job(found: OneJob) -> list[Figure]:
    """Return the figures of the load with one large job."""
    load = f"1 job x {found.nodes:,} pods"
    return [
        Figure(load, "apply to last pod created", found.created, "s"),
        Figure(load, "last pod change to Running in the status", found.status_delay, "s", 1.0),
        Figure(load, "requests to Running", found.requests, "", found.nodes + _FURTHER_REQUESTS),
        Figure(load, "CPU time to Running", found.cpu_seconds, "s"),
        Figure(load, "lag of the event loop p99", 1000 * found.loop_p99, "ms", 100.0),
        Figure(load, "memory, peak", found.peak_megabytes, "MB"),
        Figure(load, "delete to last pod gone", found.gone, "s"),
    ]


def of_bare_client(pods: int, ours: list[float], theirs: list[float]) -> list[Figure]:
    """Return the figures of a plain API client with the same pods, and the ratio of ours to it."""
    load, ratio = f"1 job x {pods:,} pods", median_ratio(ours, theirs)
    name = "ours as a multiple of the bare client"
    return [
        Figure(load, "the same pods by a bare client", median(theirs), "s"),
        Figure(load, name, ratio, "", _BARE_RATIO, interval(ours, theirs)),
    ]


def of_policy(found: PolicyCost) -> list[Figure]:
    """Return the API server's cost of the admission policy for the operator's ServiceAccount."""
    load, figures = f"{found.pods:,} pods", []
    for creator, goal in _POLICY_RATIOS.items():
        with_policy, without = (found.seconds[creator, each] for each in (True, False))
        figures += [
            Figure(load, f"CPU time of the API server, by {creator}", median(with_policy), "s"),
            Figure(
                load,
                f"as a multiple of that without the policy, by {creator}",
                median_ratio(with_policy, without),
                "",
                goal,
                interval(with_policy, without),
            ),
        ]
    return figures


def of_many_jobs(found: ManyJobs) -> list[Figure]:
    """Return the figures of the load with many jobs."""
    load = f"{found.jobs:,} jobs x {found.nodes} pods"
    returned = found.megabytes_after / found.megabytes_before
    return [
        Figure(load, "first apply to all Running", found.running, "s"),
        Figure(load, "pods created per second", found.pods_per_second, ""),
        Figure(load, "last pod change to Running p99", found.status_p99, "s", 1.0),
        Figure(load, "memory while training", found.resident_megabytes, "MB", 256.0),
        Figure(load, "memory, peak through a relist", found.peak_megabytes, "MB", 320.0),
        Figure(load, "CPU while training", found.cores, "cores", 0.3),
        Figure(load, "status writes per second", found.writes_per_second, "", 20.0),
        Figure(load, "lag of the event loop p99", 1000 * found.loop_p99, "ms"),
        Figure(load, "restart to first right action", found.restart, "s", 5.0),
        Figure(load, "restart to ready", found.caught_up, "s", 30.0),
        Figure(load, "delete to last pod gone", found.gone, "s"),
        Figure(load, "memory before", found.megabytes_before, "MB"),
        Figure(load, "memory after deletion as a multiple of before", returned, "", 1.2),
    ]


def of_neighbours(found: Neighbours) -> list[Figure]:
    """Return how much longer a new job takes while many jobs run in another namespace."""
    figures = [
        Figure("new job, alone", "apply to last pod created", median(found.created[None]), "s"),
        Figure("new job, alone", "apply to Running", median(found.running[None]), "s"),
    ]
    for conduct in (Conduct.SILENT, Conduct.HOSTILE):
        load = f"new job beside {found.crowd_jobs} {conduct} ones"
        for name, of in (("last pod created", found.created), ("Running", found.running)):
            figures += [
                Figure(load, f"apply to {name}", median(of[conduct]), "s"),
                Figure(
                    load,
                    f"{name}, as a multiple of alone",
                    median_ratio(of[conduct], of[None]),
                    "",
                    _NEIGHBOUR_RATIO,
                    interval(of[conduct], of[None]),
                ),
            ]
    return [
        *figures,
        Figure(load, "memory of the operator, peak", found.peak_megabytes, "MB", 256.0),
        Figure(load, "largest status", found.largest_status, "bytes", _LARGEST_STATUS),
    ]


def of_starts(found: Starts) -> list[Figure]:
    """Return how long small jobs waited for their first pod while large jobs created theirs."""
    load = f"small jobs beside {LARGE_JOBS} new jobs x {LARGE_NODES} pods"
    longest = max(found.first_pod)
    return [
        Figure(load, "apply to first pod, median", median(found.first_pod), "s"),
        Figure(load, "apply to first pod, longest", longest, "s", _FIRST_POD_SECONDS),
        Figure(load, "small jobs measured", len(found.first_pod), ""),
        Figure(load, "last pod of the large jobs created", found.large_created, "s"),
    ]


def of_peers(found: Comparison) -> list[Figure]:
    """Return the medians of each operator, and our time relative to the fastest tuned peer's."""
    figures = []
    for name, runs in found.runs.items():
        load = f"1 job x {found.pods:,} pods, {name}"
        figures += [
            Figure(load, "apply to last pod created", median(r.created for r in runs), "s"),
            Figure(load, "requests", median(r.requests for r in runs), ""),
            Figure(load, "CPU time", median(r.cpu_seconds for r in runs), "s"),
            Figure(load, "delete to last pod gone", median(r.gone for r in runs), "s"),
        ]
    load = f"1 job x {found.pods:,} pods"
    name = "last pod created, as a multiple of the fastest tuned peer"
    return [*figures, Figure(load, name, found.ratio(), "", _PEER_RATIO)]


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the ratio of the medians of two samples."""
    return median(ours) / median(theirs)


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the ratio of two medians."""
    draw = random.Random(0)  # noqa: S311 (resampling)
    ratios = []
    for _ in range(_RESAMPLES):
        one, other = (draw.choices(values, k=len(values)) for values in (ours, theirs))
        ratios.append(median_ratio(one, other))
    cuts = quantiles(ratios, n=40)
    return cuts[0], cuts[-1]


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as Markdown."""
    lines = ["| load | figure | value | goal |", "| --- | --- | --- | --- |"]
    for one in figures:
        goal = "-" if one.goal is None else f"{one.goal:,.0f} {one.unit}".strip()
        if one.goal is not None and one.goal % 1.0:
            goal = f"{one.goal} {one.unit}".strip()
        mark = " (missed)" if one.missed else ""
        value = f"{one.value:,.0f}" if one.value >= 100.0 else f"{one.value:.2f}"
        if one.interval is not None:
            low, high = one.interval
            value += f" ({low:.2f} to {high:.2f})"
        lines.append(f"| {one.load} | {one.name} | {value} {one.unit}{mark} | {goal} |")
    return "\n".join(lines)
