"""Count the operations of a loop's steady steps with a profiler."""

from collections import Counter

from torch.profiler import ProfilerActivity, profile

from bench.loops.systems import Train
from bench.loops.workloads import Setting, StepTimer, Workload

FIRST, STEPS = 25, 20
"""First profiled step and number of profiled steps, clear of the first steps and of reads of the
loss."""

_COLLECTIVES = ("gloo:", "nccl:")


def count(train: Train, work: Workload, at: Setting) -> dict[str, float]:
    """Return counts per step on this rank.

    Returns:
        Counts of `collectives`, `host syncs` (reads of a tensor's value) and `aten ops`.
    """
    recorder = profile(activities=[ProfilerActivity.CPU])
    timer = StepTimer(at.device, {FIRST: recorder.start, FIRST + STEPS: recorder.stop})
    train(work, at, timer)
    names = Counter[str]()
    for event in recorder.key_averages():
        names[event.key] += event.count
    totals = {
        "collectives": sum(n for name, n in names.items() if name.startswith(_COLLECTIVES)),
        "host syncs": names["aten::_local_scalar_dense"],
        "aten ops": sum(n for name, n in names.items() if name.startswith("aten::")),
    }
    return {name: total / STEPS for name, total in totals.items()}
