"""What was measured, and its tables."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.cases import Case
from tests.benchmarks.gangs import TRACE

OURS = "ours"
LIMIT_SECONDS = 120.0
"""What has not recovered by then counts as not recovered."""


@dataclass(frozen=True)
class Recovery:
    """One measured recovery."""

    seconds: float | None
    """From the fault to the first new update of every rank; None when there was none in time."""
    after_detection: float | None = None
    """The same from the moment at which Kubernetes said that the pod is lost."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds after the fault, by part."""

    def __str__(self) -> str:
        """One line of progress."""
        if self.seconds is None:
            return "not recovered"
        text = f"{self.seconds:.2f} s"
        if self.after_detection is not None:
            text += f", {self.after_detection:.2f} s after detection"
        if self.parts:
            text += f" ({', '.join(f'{k} {v:.2f}' for k, v in self.parts.items())})"
        return text


@dataclass
class Result:
    """All recoveries of a case by one gang."""

    case: Case
    label: str
    recoveries: list[Recovery] = field(default_factory=list)
    never: bool = False

    def quantile(self, q: float, value: Callable[[Recovery], float | None]) -> float:
        """A quantile by the nearest rank above; infinite where it falls on no recovery."""
        values = sorted(math.inf if (v := value(r)) is None else v for r in self.recoveries)
        return values[min(len(values) - 1, int(q * len(values)))]


def _seconds(recovery: Recovery) -> float | None:
    return recovery.seconds


def _after_detection(recovery: Recovery) -> float | None:
    return recovery.after_detection


def _judged(case: Case) -> Callable[[Recovery], float | None]:
    """What the goal speaks of."""
    return _seconds if case.lost_node is None else _after_detection


def missed(results: Sequence[Result]) -> list[str]:
    """Names of the cases in which ours missed its goal."""
    return [
        r.case.name
        for r in results
        if r.label == OURS and r.quantile(0.95, _judged(r.case)) > r.case.goal_seconds
    ]


def table(results: Sequence[Result]) -> str:
    """The figures, as Markdown: a row per fault, two columns per gang."""
    labels = list(dict.fromkeys(r.label for r in results))
    columns = [f"{label} {q}" for label in labels for q in ("p50", "p95")]
    columns.insert(2, "goal p95")
    lines = _head(["fault, seconds to the first new update", "repeats", *columns])
    for case in dict.fromkeys(r.case for r in results):
        of_case = {r.label: r for r in results if r.case is case}
        if case.lost_node is None:
            lines.append(_row(case.name, of_case, labels, _seconds, f"{case.goal_seconds:.0f}"))
            continue
        lines.append(_row(case.name, of_case, labels, _seconds, "-"))
        name, goal = f"{case.name}, from its detection", f"{case.goal_seconds:.0f}"
        lines.append(_row(name, of_case, labels, _after_detection, goal))
    return "\n".join(lines)


def parts_table(results: Sequence[Result]) -> str:
    """Where the time of our recoveries goes: median seconds after the fault."""
    lines = _head(["fault, median seconds after it", *TRACE])
    for result in results:
        told = [r.parts for r in result.recoveries if r.parts]
        if told:
            cells = [_median([parts[p] for parts in told if p in parts]) for p in TRACE]
            lines.append("| " + " | ".join([result.case.name, *cells]) + " |")
    return "\n".join(lines)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def notes(seed: int, import_seconds: float, taken: float) -> str:
    """What must be known to read the tables.

    Args:
        seed: Of the dice.
        import_seconds: What importing torch costs on this machine.
        taken: Share of its cores' time that the host gave to others.
    """
    return f"""\
- 2 nodes x 2 ranks, gloo, MiniResNet, a checkpoint every 20 updates, seed {seed}; both nodes are
  this machine, on which `import torch` took {import_seconds:.2f} s before the run (median of 3);
  meanwhile the host gave {taken:.0%} of the time that the cores had work to other machines.
- never: not recovered within {LIMIT_SECONDS:.0f} s (for a lost node: 30 s more), twice in a row in
  fresh set-ups.
- torchrun runs in a StatefulSet (Parallel, restartPolicy Always, headless Service) with the same
  image, task and claim. default: its own defaults, --max-restarts=0 among them. tuned:
  --max-restarts=1000, is_host stated, keep-alive 1 s x 3, last call 1 s, shutdown timeout 5 s,
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
- Kubernetes' crash back-off is part of what torchrun costs; each set-up is made anew once a
  container was restarted, so that the back-off is always at its beginning.
- out of memory: a process that joins the container's control group allocates until the kernel ends
  one of the pod's.
- node lost: network cut, kubelet and containers killed. Nodes count as lost after 12 s, and pods
  are evicted 5 s later (Kubernetes' defaults are 50 s and 300 s)."""


def _head(names: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]


def _row(
    name: str,
    of_case: dict[str, Result],
    labels: Sequence[str],
    value: Callable[[Recovery], float | None],
    goal: str,
) -> str:
    cells = [_cell(of_case[label], q, value) for label in labels for q in (0.5, 0.95)]
    cells.insert(2, goal)
    counts = "/".join(str(len(of_case[label].recoveries)) for label in labels)
    return "| " + " | ".join([name, counts, *cells]) + " |"


def _cell(result: Result, q: float, value: Callable[[Recovery], float | None]) -> str:
    if result.never:
        return "never"
    seconds = result.quantile(q, value)
    return f"{seconds:.2f}" if math.isfinite(seconds) else f"> {LIMIT_SECONDS:.0f}"
