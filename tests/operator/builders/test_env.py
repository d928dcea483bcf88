"""The environment of the worker container, which the agent reads."""

import json
from typing import Any

import pytest

from ddp_agent.config import AgentConfig
from ddp_agent.hang_limits import HangLimits
from ddp_operator.builders.env import build_env, checkpoint_path
from ddp_wire.contract import AGENT_PORT, CHECKPOINT_MOUNT, RENDEZVOUS_PORT_BASE, Env
from ddp_wire.expansion import expand
from tests.operator.support import UID, new_job


def variables(index: int = 0, **spec: Any) -> dict[str, str]:
    """Return the variables as a container sees them: expanded, the last one of a name."""
    seen: dict[str, str] = {}
    for one in build_env(new_job(**spec), index):
        seen[one["name"]] = expand(one.get("value", ""), seen)
    return seen


def test_agent_reads_the_environment_of_a_task() -> None:
    env = variables(
        3, nodes=12, procsPerNode=4, config={"epochs": 1}, checkpoint={"claimName": "c"}
    )
    config = AgentConfig.from_environment(env)
    assert config.job_uid == UID
    assert (config.node_index, config.nodes, config.procs_per_node) == (3, 12, 4)
    assert config.rendezvous_host == "digits-0000.digits"
    assert config.pod_address == "digits-0003.digits"
    assert config.rendezvous_port_base == RENDEZVOUS_PORT_BASE
    assert config.port == AGENT_PORT
    assert config.task == "ddp_trainer.tasks.miniresnet:build"
    assert config.command is None
    assert str(config.checkpoint_dir) == f"{CHECKPOINT_MOUNT}/digits-{UID}"
    assert config.rank_command() == ["-m", "ddp_trainer", "train"]


def test_agent_reads_the_environment_of_a_command() -> None:
    env = variables(command=["python", "/app/a b.py"], args=["--lr=0.1", 'say "x"'])
    config = AgentConfig.from_environment(env)
    assert config.task is None
    assert config.checkpoint_dir is None
    assert config.rank_command() == ["python", "/app/a b.py", "--lr=0.1", 'say "x"']


def test_variable_references_in_a_command_are_expanded_as_in_a_pod() -> None:
    args = ["$(DDP_JOB_NAME)/$(RUN)", "$$(RUN)", "$$", "$(MISSING)", '$(QUOTED)"', "$HOME"]
    given = [{"name": "RUN", "value": "$(DDP_NODES)-$$"}, {"name": "QUOTED", "value": '"\\'}]
    env = variables(command=["a"], args=args, env=given, nodes=2)
    found = AgentConfig.from_environment(env | {Env.AGENT_SECRET: "hidden"})
    assert found.rank_command() == [
        "a",
        "digits/2-$",
        "$(RUN)",
        "$",
        "$(MISSING)",
        '"\\"',
        "$HOME",
    ]
    leak = variables(command=["$(DDP_AGENT_SECRET)"]) | {Env.AGENT_SECRET: "hidden"}
    assert AgentConfig.from_environment(leak).rank_command() == ["$(DDP_AGENT_SECRET)"]


@pytest.mark.parametrize(
    ("spec", "ranks"),
    [
        ({}, "1"),
        ({"procsPerNode": 3}, "3"),
        ({"gpusPerNode": 8}, "8"),
        ({"gpusPerNode": 8, "procsPerNode": 4}, "4"),
    ],
    ids=["default", "procsPerNode", "one per GPU", "procsPerNode and GPUs"],
)
def test_ranks_per_node_default_to_the_number_of_gpus(spec: dict[str, Any], ranks: str) -> None:
    assert variables(**spec)[Env.PROCS_PER_NODE] == ranks


def test_configuration_is_passed_as_json() -> None:
    config = {"epochs": 20, "name": "Blüte", "nested": {"list": [1, None, True]}}
    assert json.loads(variables(config=config)[Env.CONFIG]) == config
    assert json.loads(variables()[Env.CONFIG]) == {}
    config = {"task": {"pattern": "$$(DDP_JOB_NAME)$(DDP_JOB_NAME)^a$$"}}
    assert json.loads(variables(config=config)[Env.CONFIG]) == config
    assert Env.CONFIG not in variables(command=["a"])


def test_checkpoint_intervals_are_passed_only_if_given() -> None:
    plain = variables(checkpoint={"claimName": "c"})
    assert plain[Env.CHECKPOINT_KEEP] == "3"
    assert not {Env.CHECKPOINT_EVERY_STEPS, Env.CHECKPOINT_EVERY_SECONDS} & plain.keys()
    stated = variables(
        checkpoint={"claimName": "c", "everySteps": 50, "everySeconds": 60, "keep": 9}
    )
    assert stated[Env.CHECKPOINT_EVERY_STEPS] == "50"
    assert stated[Env.CHECKPOINT_EVERY_SECONDS] == "60"
    assert stated[Env.CHECKPOINT_KEEP] == "9"
    assert Env.CHECKPOINT_START_OVER not in plain
    assert (
        variables(checkpoint={"claimName": "c", "startOver": True})[Env.CHECKPOINT_START_OVER]
        == "true"
    )
    assert not any(name.startswith("DDP_CHECKPOINT") for name in variables())


def test_agent_reads_the_limits_of_hangs() -> None:
    assert Env.HANG not in variables()
    assert AgentConfig.from_environment(variables()).hang == HangLimits()
    given = {"stepSeconds": 60, "checkpointSeconds": 7200}
    hang = AgentConfig.from_environment(variables(hang=given)).hang
    assert (hang.step_seconds, hang.checkpoint_seconds) == (60, 7200)
    assert hang.start_seconds == HangLimits().start_seconds
    off = AgentConfig.from_environment(variables(hang={"detect": False})).hang
    assert not off.detect


def test_jobs_of_one_name_share_checkpoints_only_with_an_explicit_path() -> None:
    job = new_job(checkpoint={"claimName": "c"})
    later = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "other"})})
    assert checkpoint_path(job) != checkpoint_path(later)
    assert checkpoint_path(new_job(checkpoint={"claimName": "c", "path": "runs/a"})) == "runs/a"


@pytest.mark.parametrize("level", ["Version", "Warn", "Info", "Trace"])
def test_nccl_debug_level_is_upper_case(level: str) -> None:
    assert variables(network={"ncclDebug": level})["NCCL_DEBUG"] == level.upper()


def test_network_interface_is_set_for_nccl_and_gloo() -> None:
    env = variables(network={"interface": "eth1"})
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("eth1", "eth1")
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG"} & variables().keys()


def test_user_variables_take_precedence_over_derived_ones() -> None:
    env = variables(
        network={"interface": "eth1"}, env=[{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}]
    )
    assert env["NCCL_SOCKET_IFNAME"] == "ib0"


def test_variable_from_a_secret_keeps_its_source() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    stated = build_env(new_job(env=[{"name": "TOKEN", "valueFrom": source}]), 0)[-1]
    assert stated == {"name": "TOKEN", "valueFrom": source}


def test_every_value_is_a_string() -> None:
    for variable in build_env(new_job(nodes=3, checkpoint={"claimName": "c"}), 0):
        assert isinstance(variable["name"], str)
        assert "valueFrom" in variable or isinstance(variable["value"], str)


def test_agent_gets_the_kubernetes_node_and_rack_and_zone_of_its_pod() -> None:
    fields = {
        v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"]
        for v in build_env(new_job(), 0)
        if "valueFrom" in v
    }
    assert fields == {
        "DDP_NODE_NAME": "spec.nodeName",
        "DDP_RACK": "metadata.labels['ddp-trainer.dev/rack']",
        "DDP_ZONE": "metadata.labels['topology.kubernetes.io/zone']",
    }
