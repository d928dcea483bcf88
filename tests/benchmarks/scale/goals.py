"""Goals of the benchmark, and the table of its figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.scale.conduct import Conduct
from tests.benchmarks.scale.loads import ManyJobs, OneJob
from tests.benchmarks.scale.neighbours import Neighbours
from tests.benchmarks.scale.peers import Comparison

_FURTHER_REQUESTS = 8
_BARE_RATIO = 1.2
_NEIGHBOUR_RATIO = 1.2
_PEER_RATIO = 0.85
_LARGEST_STATUS = 32_768


@dataclass(frozen=True)
class Figure:
    """One measured value. `goal` is its largest permitted value, or None without a goal."""

    load: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of the value, or None where a single value counts."""

    @property
    def missed(self) -> bool:
        """Return whether the value is above its goal, as far as its interval allows a verdict."""
        least = self.value if self.interval is None else self.interval[0]
        return self.goal is not None and least > self.goal


def of_one_job(found: OneJob) -> list[Figure]:
    """Return the figures of one job."""
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


def of_bare_client(found: OneJob, seconds: float) -> list[Figure]:
    """Return the figures of a bare client with the same pods, and how much longer ours took."""
    load = f"1 job x {found.nodes:,} pods"
    ratio = found.created / seconds
    return [
        Figure(load, "the same pods by a bare client", seconds, "s"),
        Figure(load, "ours as a multiple of the bare client", ratio, "", _BARE_RATIO),
    ]


def of_many_jobs(found: ManyJobs) -> list[Figure]:
    """Return the figures of many jobs."""
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
    """Return what a crowd of jobs in one namespace costs a new job in another one."""
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
                    found.ratio(of, conduct),
                    "",
                    _NEIGHBOUR_RATIO,
                    found.interval(of, conduct),
                ),
            ]
    return [
        *figures,
        Figure(load, "memory of the operator, peak", found.peak_megabytes, "MB", 256.0),
        Figure(load, "largest status", found.largest_status, "bytes", _LARGEST_STATUS),
    ]


def of_peers(found: Comparison) -> list[Figure]:
    """Return the medians of each operator, and ours as a multiple of the fastest tuned peer."""
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
