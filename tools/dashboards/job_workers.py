"""Build the panels about one job's ranks, nodes and GPUs."""

from collections.abc import Sequence

from ddp_agent.status import metrics as agent
from ddp_operator.runtime import job_metrics as jobs
from tools.dashboards.frame import job_link
from tools.dashboards.panels import Panel, Query, Text, time_series, values
from tools.dashboards.promql import (
    JOB,
    RANGE_WINDOW,
    WORKERS,
    age,
    aggregate,
    increase,
    least,
    most,
    newest,
    rate,
    series,
)

_EMPTY = "The worker pods are not scraped, or have ended"
_NO_GPUS = "No GPUs, or the worker pods are not scraped"
_RANK = "rank, node"
_NODE = "node_index, node"
_GPU = "node_index, node, gpu"
_RANK_NAME = "rank {{rank}}"
_NODE_NAME = "node {{node_index}} on {{node}}"
_GPU_NAME = "node {{node_index}} GPU {{gpu}}"
_SAME_NODE = job_link(
    "Show this Kubernetes node alone",
    "${namespace:queryparam}&${ddpjob:queryparam}&var-node=${__field.labels.node}",
)


def ranks() -> Sequence[Panel]:
    """Return the panels with one series per rank."""
    return [_behind(), _heartbeats(), _data_wait(), _straggler()]


def _straggler() -> Panel:
    text = Text(
        "Slow rank",
        "x",
        "How many times as long as the others a slow rank needs for its own part of an update, for"
        " which all others wait.",
        "No rank is slower than the others",
    )
    query = newest(jobs.STRAGGLER, JOB, "rank, pod, node, part")
    return time_series(text, Query(query, "rank {{rank}} on {{node}}: {{part}}"), width=6)


def nodes() -> Sequence[Panel]:
    """Return the panels with one series per node."""
    return [_size(), _resizes(), _memory(), _throttled(), _oom_kills()]


def _size() -> Panel:
    text = Text(
        "Size of the job",
        "short",
        "How many nodes the job asks for, how many take part in the attempt, and how many train.",
        "No such job, or the operator is not scraped",
    )
    return time_series(
        text,
        Query(newest(jobs.NODES, JOB), "asked for"),
        Query(newest(jobs.MEMBERS, JOB), "members"),
        Query(newest(jobs.READY, JOB), "training"),
        Query(newest(jobs.RESIZES, JOB), "changes since the start"),
    )


def _resizes() -> Panel:
    text = Text(
        "Time of the last change of the size",
        "s",
        "How long the last change of the size took, from the decision to the first update of all"
        " ranks.",
        "The size has not changed, or the operator is not scraped",
    )
    return time_series(text, Query(newest(jobs.RESIZE_TIME, JOB), "last change"))


def gpus() -> Sequence[Panel]:
    """Return the panels with one series per GPU."""
    ecc = Text(
        "GPU memory errors",
        "short",
        "How many uncorrected memory errors each GPU had in this time; such a GPU may compute wrong"
        " results.",
        _NO_GPUS,
    )
    errors = most(increase(agent.GPU_ECC, WORKERS, _GPU, window=RANGE_WINDOW))
    return [
        _gpu_use(),
        _gpu_memory(),
        _gpu_temperature(),
        _gpu_power(),
        _rank_memory(),
        values(ecc, Query(errors, _GPU_NAME), width=8, limits=[(1, "red")], decimals=0),
        _xid_errors(),
    ]


def _behind() -> Panel:
    text = Text(
        "Updates behind the fastest rank",
        "short",
        "Which ranks are late: a rank that stays behind holds up all others.",
        _EMPTY,
    )
    step = newest(agent.STEP, WORKERS, _RANK)
    behind = f"scalar({newest(agent.STEP, WORKERS)}) - {step}"
    return time_series(text, Query(most(behind), _RANK_NAME), width=6, links=[_SAME_NODE])


def _heartbeats() -> Panel:
    text = Text(
        "Heartbeat age by rank",
        "s",
        "Which ranks may be stuck: their heartbeats are the oldest.",
        _EMPTY,
    )
    ages = most(age(agent.HEARTBEAT, WORKERS, _RANK))
    return time_series(text, Query(ages, _RANK_NAME), width=6, links=[_SAME_NODE])


def _data_wait() -> Panel:
    text = Text(
        "Wait for data by rank",
        "percentunit",
        "Which ranks wait longest for their data, as a part of their updates.",
        "No measured updates in this time",
    )
    updates = rate(agent.UPDATE_SECONDS, WORKERS, _RANK)
    waits = f"{rate(agent.DATA_WAIT, WORKERS, _RANK)} / ({updates} > 0)"
    return time_series(text, Query(most(waits), _RANK_NAME), width=6, links=[_SAME_NODE])


def _memory() -> Panel:
    text = Text(
        "Memory by node", "bytes",
        "Which worker containers use the most memory, without page cache that the kernel can drop.",
        _EMPTY,
    )  # fmt: skip
    used = most(newest(agent.MEMORY, WORKERS, _NODE))
    return time_series(text, Query(used, _NODE_NAME), links=[_SAME_NODE])


def _throttled() -> Panel:
    text = Text(
        "CPU throttling by node",
        "suffix: s/s",
        "How long the CPU quota throttles each worker container, in seconds per second.",
        "No CPU quota, or the worker pods are not scraped",
    )
    throttled = most(rate(agent.THROTTLED, WORKERS, _NODE))
    return time_series(text, Query(throttled, _NODE_NAME), links=[_SAME_NODE])


def _oom_kills() -> Panel:
    text = Text(
        "OOM kills by node",
        "short",
        "When the kernel killed a process of a worker container at its memory limit.",
        _EMPTY,
    )
    kills = most(increase(agent.OOM_KILLS, WORKERS, _NODE))
    return time_series(text, Query(kills, _NODE_NAME), bars=True, links=[_SAME_NODE])


def _xid_errors() -> Panel:
    text = Text(
        "XID errors",
        "short",
        "Which errors the driver reported of each GPU in this time, by their number in NVIDIA's"
        " catalog of XIDs.",
        "No XID error, no GPUs, or the worker pods are not scraped",
    )
    # A series begins with the first error, so `increase` would miss it.
    counted = f"max_over_time({series(agent.GPU_XID, WORKERS, window=RANGE_WINDOW)})"
    query = most(aggregate("max", f"{_GPU}, xid", counted))
    name = f"{_GPU_NAME} XID {{{{xid}}}}"
    return values(text, Query(query, name), width=8, limits=[(1, "red")], decimals=0)


def _gpu_use() -> Panel:
    text = Text(
        "GPU utilization",
        "percentunit",
        "Which GPUs compute the least: they wait for data, for other ranks or for the CPU.",
        _NO_GPUS,
    )
    use = least(newest(agent.GPU_USE, WORKERS, _GPU))
    return time_series(text, Query(use, _GPU_NAME), top=1, links=[_SAME_NODE])


def _gpu_memory() -> Panel:
    text = Text(
        "GPU memory",
        "percentunit",
        "Which part of its memory each GPU uses: near 100 %, a larger batch runs out of memory.",
        _NO_GPUS,
    )
    used = newest(agent.GPU_MEMORY, WORKERS, _GPU)
    size = newest(agent.GPU_MEMORY_SIZE, WORKERS, _GPU)
    return time_series(text, Query(most(f"{used} / {size}"), _GPU_NAME), top=1, links=[_SAME_NODE])


def _gpu_temperature() -> Panel:
    text = Text(
        "GPU temperature",
        "celsius",
        "Which GPUs are hottest: a GPU that is too hot slows itself down, and with it all ranks.",
        _NO_GPUS,
    )
    temperature = most(newest(agent.GPU_TEMPERATURE, WORKERS, _GPU))
    return time_series(text, Query(temperature, _GPU_NAME), links=[_SAME_NODE])


def _gpu_power() -> Panel:
    text = Text(
        "GPU power",
        "watt",
        "How much power the GPUs draw: a low power at high utilization means little work.",
        _NO_GPUS,
    )
    power = most(newest(agent.GPU_POWER, WORKERS, _GPU))
    return time_series(text, Query(power, _GPU_NAME), links=[_SAME_NODE])


def _rank_memory() -> Panel:
    text = Text(
        "GPU memory of tensors by rank",
        "bytes",
        "How much GPU memory the tensors of each rank use: a steady rise is a leak.",
        _NO_GPUS,
    )
    memory = most(aggregate("max", _RANK, series(agent.RANK_GPU_MEMORY, WORKERS)))
    return time_series(text, Query(memory, _RANK_NAME), links=[_SAME_NODE])
