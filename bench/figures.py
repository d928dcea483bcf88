"""Results of the recovery benchmark and their tables."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.cases import Case
from bench.gangs import PHASES

OURS = "ours"
LIMIT_SECONDS = 120.0
"""Maximum recovery time in seconds. Slower runs count as not recovered."""


@dataclass(frozen=True)
class Recovery:
    """One measured recovery."""

    seconds: float | None
    """Seconds from the fault to the first new update of every rank; None if not in time."""
    after_detection: float | None = None
    """Seconds from the detection of the lost pod by Kubernetes to the first new update of every
    rank."""
    back: float | None = None
    """Seconds from the fault until the run had repeated all lost updates."""
    repeated: int | None = None
    """Number of updates before the fault that the run has done twice."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds after the fault at which each phase of the recovery ended, by phase."""

    def __str__(self) -> str:
        """Return the recovery in one line."""
        if self.seconds is None:
            return "not recovered"
        text = f"{self.seconds:.2f} s"
        if self.after_detection is not None:
            text += f", {self.after_detection:.2f} s after detection"
        if self.back is not None:
            text += f", back where it was after {self.back:.2f} s"
        if self.repeated is not None:
            text += f", {self.repeated} updates done twice"
        if self.phases:
            text += f" ({', '.join(f'{k} {v:.2f}' for k, v in self.phases.items())})"
        return text


@dataclass
class Result:
    """Result: all recoveries that were measured for one gang and one fault."""

    case: Case
    label: str
    recoveries: list[Recovery] = field(default_factory=list)
    never: bool = False

    def quantile(self, q: float, value: Callable[[Recovery], float | None]) -> float:
        """Return a quantile of the recovery times by nearest rank; infinite for a missing one."""
        values = sorted(math.inf if (v := value(r)) is None else v for r in self.recoveries)
        return values[min(len(values) - 1, int(q * len(values)))]


def _seconds(recovery: Recovery) -> float | None:
    return recovery.seconds


def _after_detection(recovery: Recovery) -> float | None:
    return recovery.after_detection


def _goal_value(case: Case) -> Callable[[Recovery], float | None]:
    """Return the recovery time to which the goal applies."""
    return _seconds if case.lost_node is None else _after_detection


def missed(results: Sequence[Result]) -> list[str]:
    """Return the names of the cases in which the DDPJob missed its goal."""
    return [
        r.case.name
        for r in results
        if r.label == OURS and r.quantile(0.95, _goal_value(r.case)) > r.case.goal_seconds
    ]


def table(results: Sequence[Result]) -> str:
    """Return the results as Markdown, with a row per fault and four columns per gang."""
    labels = list(dict.fromkeys(r.label for r in results))
    names = ("p50", "p95", "back where it was p50", "updates done twice p50")
    columns = [f"{label} {name}" for label in labels for name in names]
    columns.insert(2, "goal p95")
    lines = _head(["fault, seconds to the first new update", "repeats", *columns])
    for case in dict.fromkeys(r.case for r in results):
        of_case = {r.label: r for r in results if r.case is case}
        if case.lost_node is None:
            lines.append(_row(case.name, of_case, labels, _seconds, f"{case.goal_seconds:g}"))
            continue
        lines.append(_row(case.name, of_case, labels, _seconds, "-"))
        name, goal = f"{case.name}, from its detection", f"{case.goal_seconds:g}"
        lines.append(_row(name, of_case, labels, _after_detection, goal))
    return "\n".join(lines)


def phases_table(results: Sequence[Result]) -> str:
    """Return the phases of the DDPJob's recoveries as Markdown, in median seconds after the fault.

    The text is empty if no recovery has phases, as when the operator reaches no agent.
    """
    rows = []
    for result in results:
        traces = [r.phases for r in result.recoveries if r.phases]
        if traces:
            cells = [_median([phases[p] for phases in traces if p in phases]) for p in PHASES]
            rows.append("| " + " | ".join([result.case.name, *cells]) + " |")
    head = _head(["fault, median seconds after it", *PHASES])
    return "\n".join([*head, *rows]) if rows else ""


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def notes(seed: int, import_seconds: float, steal: float) -> str:
    """Return the notes that explain the tables.

    Args:
        seed: Seed of the random choices.
        import_seconds: Seconds that an import of torch takes on this machine.
        steal: Fraction of busy CPU time that the hypervisor gave to other machines.
    """
    return f"""\
- 2 nodes x 2 ranks, gloo, MiniResNet, a checkpoint every 20 updates, seed {seed}; both nodes are
  this machine, on which `import torch` took {import_seconds:.2f} s before the run (median of 3);
  the CPU steal time during the run was {steal:.0%} of the busy time.
- never: not recovered within {LIMIT_SECONDS:.0f} s (for a lost node: 30 s more), twice in a row in
  new set-ups.
- torchrun runs in a StatefulSet (Parallel, restartPolicy Always, headless Service) with the same
  image, task and claim. default: its own defaults, --max-restarts=0 among them. tuned:
  --max-restarts=1000, is_host stated, keep-alive 1 s x 3, last call 1 s, shutdown timeout 5 s,
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
- CrashLoopBackOff is part of torchrun's recovery time. Each set-up is replaced once a container
  has restarted, so the back-off always starts at its first delay.
- out of memory: a process that joins the container's control group allocates memory until the
  kernel kills one of the pod's processes.
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
    cells = []
    for label in labels:
        result = of_case[label]
        cells += [_cell(result, q, value) for q in (0.5, 0.95)]
        backs = [_back(r, value(r)) for r in result.recoveries]
        cells.append(_median([back for back in backs if back is not None]))
        repeated = [r.repeated for r in result.recoveries if r.repeated is not None]
        cells.append(f"{statistics.median(repeated):.0f}" if repeated else "-")
    cells.insert(2, goal)
    counts = "/".join(str(len(of_case[label].recoveries)) for label in labels)
    return "| " + " | ".join([name, counts, *cells]) + " |"


def _back(recovery: Recovery, counted: float | None) -> float | None:
    """Return the seconds until the run had repeated all lost updates.

    Args:
        recovery: The recovery.
        counted: Seconds to the first new update, counted from the fault or from its detection.
    """
    if recovery.back is None or recovery.seconds is None or counted is None:
        return None
    return recovery.back - (recovery.seconds - counted)


def _cell(result: Result, q: float, value: Callable[[Recovery], float | None]) -> str:
    if result.never:
        return "never"
    seconds = result.quantile(q, value)
    return f"{seconds:.2f}" if math.isfinite(seconds) else f"> {LIMIT_SECONDS:.0f}"
