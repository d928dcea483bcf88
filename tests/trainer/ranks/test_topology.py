"""Where the ranks are, and whether their order follows it."""

import socket

import pytest

from ddp_trainer.ranks.topology import Place, disorder, rank_map
from tests.trainer.rank_processes import Launcher

A1, A2, B1 = Place("n1", "r1", "a"), Place("n2", "r1", "a"), Place("n3", "r2", "b")


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place(socket.gethostname())),
        (
            {"DDP_NODE_NAME": "gpu-7", "DDP_RACK": "r4", "DDP_ZONE": "eu-1a"},
            Place("gpu-7", "r4", "eu-1a"),
        ),
        ({"DDP_NODE_NAME": "gpu-7", "DDP_RACK": "", "DDP_ZONE": ""}, Place("gpu-7")),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "spine.leaf3.node7",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            },
            Place("node7", "leaf3"),
        ),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "node7",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
            },
            Place("node7"),
        ),
        (
            {
                "SLURMD_NODENAME": "node7",
                "SLURM_TOPOLOGY_ADDR": "node7.cluster.example",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
            },
            Place("node7"),
        ),
    ],
    ids=["by hand", "pod", "pod without labels", "Slurm", "Slurm without switches", "dots"],
)
def test_a_rank_knows_where_it_is(environ: dict[str, str], place: Place) -> None:
    assert Place.from_environment(environ) == place


def test_the_map_joins_neighbours_and_leaves_out_what_nobody_told() -> None:
    assert rank_map([A1, A1, A1, B1, A1]) == [
        {"ranks": "0-2", "host": "n1", "rack": "r1", "zone": "a"},
        {"ranks": "3", "host": "n3", "rack": "r2", "zone": "b"},
        {"ranks": "4", "host": "n1", "rack": "r1", "zone": "a"},
    ]
    assert rank_map([Place("x")] * 16) == [{"ranks": "0-15", "host": "x"}]
    assert rank_map([]) == []


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ([Place("x")] * 4, None),
        ([A1, A2, B1], None),
        ([A1, B1, A2], None),  # as a ring it is the same order
        ([A1, B1, A1, B1], "from zone to zone 4 times where 2 would do"),
        (
            [Place("n", f"r{rack}", "a") for rack in (1, 2, 3, 1, 2, 3)],
            "from rack to rack 6 times where 3 would do",
        ),
    ],
)
def test_a_ring_that_crosses_too_often_is_told_of(
    places: list[Place], sentence: str | None
) -> None:
    told = disorder(places)
    assert told is None if sentence is None else sentence in (told or "")


def test_the_first_line_says_where_all_ranks_are(launcher: Launcher) -> None:
    gang = launcher.call("probes:placed", ["a", "b", "a", "b"], world=4)
    assert gang.wait() == [0] * 4
    (start,) = gang.events("start")
    assert start["places"] == [
        {"ranks": str(rank), "host": f"n{rank}", "zone": "ab"[rank % 2]} for rank in range(4)
    ]
    (warning,) = gang.events("warning")
    assert warning["message"].startswith("the ring of ranks crosses from zone to zone 4 times")
