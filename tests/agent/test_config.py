"""The agent's configuration: a wrong environment gives an error of one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_agent.config import AgentConfig, BadEnvironmentError
from ddp_wire.contract import AGENT_PORT, RENDEZVOUS_PORT_BASE, Env
from tests.agent.support import config, environment


def test_unset_variables_have_the_defaults_of_the_contract(tmp_path: Path) -> None:
    stated = environment(tmp_path)
    for name in (Env.POD_INFO_DIR, Env.TERMINATION_LOG, Env.RENDEZVOUS_PORT_BASE):
        del stated[name]
    found = AgentConfig.from_environment(stated)
    assert found.pod_info_dir == Path("/etc/ddp-trainer")
    assert found.termination_log == Path("/dev/termination-log")
    assert found.rendezvous_port_base == RENDEZVOUS_PORT_BASE
    assert (found.port, found.bind) == (AGENT_PORT, "")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (Env.JOB_UID, None, "DDP_JOB_UID must be set, as it is in the pods of a DDPJob; to"),
        (Env.JOB_UID, "", "DDP_JOB_UID: String should have at least 1 character"),
        (Env.HANG, '{"stepSeconds": 0}', "DDP_HANG: Input should be greater than 0"),
        (Env.HANG, "soon", "DDP_HANG: Invalid JSON"),
        (Env.NODE_INDEX, "first", "DDP_NODE_INDEX: Input should be a valid integer"),
        (Env.NODE_INDEX, "-1", "DDP_NODE_INDEX: Input should be greater than or equal to 0"),
        (Env.NODES, "0", "DDP_NODES: Input should be greater than or equal to 1"),
        (Env.PROCS_PER_NODE, "0", "DDP_PROCS_PER_NODE: Input should be greater than"),
        (Env.TASK, None, "exactly one of DDP_COMMAND and DDP_TASK must be set"),
        (Env.COMMAND, '["a"]', "exactly one of DDP_COMMAND and DDP_TASK must be set"),
    ],
)
def test_wrong_environment_gives_one_sentence_that_names_the_variable(
    tmp_path: Path, name: str, value: str | None, sentence: str
) -> None:
    with pytest.raises(BadEnvironmentError) as caught:
        config(tmp_path, **{name: value})
    message = str(caught.value)
    assert message.startswith(sentence)
    assert message.splitlines() == [message]


def test_agent_process_prints_the_sentence_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ddp_agent"],
        env={"PATH": "/usr/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "ddp-agent: DDP_JOB_UID must be set, as it is in the pods of a DDPJob; to train by hand,"
        " run ddp-trainer or torchrun instead of the image's entrypoint\n"
    )
