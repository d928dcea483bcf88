"""What a steady step of a loop does, counted from a profile: exact on a busy machine too."""

from collections import Counter

from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.loops.systems import Train
from tests.benchmarks.loops.workloads import Setting, Watch, Workload

FIRST, STEPS = 25, 20
"""The steps that are profiled: away from the first ones, and from where the loops read the loss."""

_COLLECTIVES = ("gloo:", "nccl:")


def count(train: Train, work: Workload, at: Setting) -> dict[str, float]:
    """Counts per step, on this rank.

    Returns:
        Of `collectives`, `host syncs` (reads of a tensor's value) and `aten ops`.
    """
    recorder = profile(activities=[ProfilerActivity.CPU])
    watch = Watch(at.device, {FIRST: recorder.start, FIRST + STEPS: recorder.stop})
    train(work, at, watch)
    names = Counter[str]()
    for event in recorder.key_averages():
        names[event.key] += event.count
    totals = {
        "collectives": sum(n for name, n in names.items() if name.startswith(_COLLECTIVES)),
        "host syncs": names["aten::_local_scalar_dense"],
        "aten ops": sum(n for name, n in names.items() if name.startswith("aten::")),
    }
    return {name: total / STEPS for name, total in totals.items()}
