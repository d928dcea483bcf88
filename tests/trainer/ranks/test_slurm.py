"""Conversion of Slurm's environment variables to those of torchrun."""

import pytest

from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.slurm import hosts_of, variables_of_slurm

SLURM = {
    "SLURM_JOB_ID": "70123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "4,3",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-010,21]", ["gpu008", "gpu009", "gpu010", "gpu21"]),
        ("login,gpu[1,3]-ib,z.example", ["login", "gpu1-ib", "gpu3-ib", "z.example"]),
    ],
)
def test_node_list_expands_to_host_names(nodes: str, hosts: list[str]) -> None:
    assert hosts_of(nodes) == hosts


@pytest.mark.parametrize("nodes", ["", "gpu[1-", "gpu[a-b]", "gpu]", ",a"])
def test_malformed_node_list_is_an_input_error(nodes: str) -> None:
    with pytest.raises(InputError, match="SLURM_JOB_NODELIST"):
        hosts_of(nodes)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (5, 7, 1, 3)),
        ({"SLURM_NODEID": "0", "SLURM_PROCID": "1"}, (1, 7, 1, 4)),
        ({"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, (5, 7, 1, 1)),
        ({"SLURM_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "4"}, (5, 7, 1, 4)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, (5, 8, 1, 3)),
    ],
)
def test_ranks_follow_from_slurm_variables(
    change: dict[str, str], expected: tuple[int, int, int, int]
) -> None:
    found = variables_of_slurm(SLURM | change)
    assert found["MASTER_ADDR"] == "gpu07"
    assert 1024 < int(found["MASTER_PORT"]) < 2**16
    ranks = Ranks.from_environment(found)
    numbers = (ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size)
    assert numbers == expected
    assert ranks.launched


@pytest.mark.parametrize(
    "environ",
    [
        {},
        SLURM | {"RANK": "0", "WORLD_SIZE": "1"},  # torchrun inside a Slurm job
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
        SLURM | {"SLURM_NTASKS": "1"},
    ],
)
def test_environment_stays_unchanged_without_srun(environ: dict[str, str]) -> None:
    assert variables_of_slurm(environ) == {}


def test_variables_that_are_set_are_not_overridden_by_slurm_values() -> None:
    found = variables_of_slurm(SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert "MASTER_ADDR" not in found
    assert "MASTER_PORT" not in found


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"SLURM_PROCID": "x"}, 'SLURM_PROCID must be a non-negative integer, not "x"'),
        ({"SLURM_LOCALID": ""}, "SLURM_LOCALID must be set when SLURM_NTASKS is set"),
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST must be set"),
        ({"SLURM_TASKS_PER_NODE": "many"}, "unknown format"),
        ({"SLURM_NODEID": "2"}, "has no entry for node 2"),
    ],
)
def test_inconsistent_slurm_variables_are_an_input_error(
    change: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        variables_of_slurm(SLURM | change)
