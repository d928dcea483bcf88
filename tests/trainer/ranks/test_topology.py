"""Location of ranks, and the warning about their order."""

import socket

import pytest

from ddp_trainer.ranks.topology import Location, rank_map, ring_warning
from tests.trainer.rank_processes import Launcher

A1, A2, B1 = Location("n1", "r1", "a"), Location("n2", "r1", "a"), Location("n3", "r2", "b")


@pytest.mark.parametrize(
    ("environ", "location"),
    [
        ({}, Location(socket.gethostname())),
        (
            {"DDP_NODE_NAME": "gpu-7", "DDP_RACK": "r4", "DDP_ZONE": "eu-1a"},
            Location("gpu-7", "r4", "eu-1a"),
        ),
        ({"DDP_NODE_NAME": "gpu-7", "DDP_RACK": "", "DDP_ZONE": ""}, Location("gpu-7")),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "spine.leaf3.node7",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            },
            Location("node7", "leaf3"),
        ),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "node7",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
            },
            Location("node7"),
        ),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "node7.cluster.example",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
            },
            Location("node7"),
        ),
    ],
    ids=["no variables", "pod", "pod without labels", "Slurm", "Slurm without switches", "dots"],
)
def test_location_of_a_rank_comes_from_the_environment(
    environ: dict[str, str], location: Location
) -> None:
    assert Location.from_environment(environ) == location


def test_rank_map_merges_consecutive_ranks_and_omits_unknown_parts() -> None:
    assert rank_map([A1, A1, A1, B1, A1]) == [
        {"ranks": "0-2", "host": "n1", "rack": "r1", "zone": "a"},
        {"ranks": "3", "host": "n3", "rack": "r2", "zone": "b"},
        {"ranks": "4", "host": "n1", "rack": "r1", "zone": "a"},
    ]
    assert rank_map([Location("x")] * 16) == [{"ranks": "0-15", "host": "x"}]
    assert rank_map([]) == []


@pytest.mark.parametrize(
    ("locations", "sentence"),
    [
        ([Location("x")] * 4, None),
        ([A1, A2, B1], None),
        ([A1, B1, A2], None),  # the same ring
        ([A1, B1, A1, B1], "between zones 4 times, but 2 times are enough"),
        (
            [Location("n", f"r{rack}", "a") for rack in (1, 2, 3, 1, 2, 3)],
            "between racks 6 times, but 3 times are enough",
        ),
    ],
)
def test_order_of_ranks_that_crosses_zones_needlessly_causes_a_warning(
    locations: list[Location], sentence: str | None
) -> None:
    warning = ring_warning(locations)
    assert warning is None if sentence is None else sentence in (warning or "")


def test_start_event_contains_the_location_of_all_ranks(launcher: Launcher) -> None:
    gang = launcher.call("probes:train_in_zones", ["a", "b", "a", "b"], world=4)
    assert gang.wait() == [0] * 4
    (start,) = gang.events("start")
    assert start["places"] == [
        {"ranks": str(rank), "host": f"n{rank}", "zone": "ab"[rank % 2]} for rank in range(4)
    ]
    (warning,) = gang.events("warning")
    assert warning["message"].startswith("the ring of ranks crosses between zones 4 times")
