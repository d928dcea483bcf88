"""Ranks that are not alike are named before anything is trained; nobody waits for them."""

import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddp_trainer.data.fingerprint import fingerprint
from ddp_trainer.errors import Refusal
from ddp_trainer.ranks import nccl_log, preflight, reach
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.preflight import Facts, differences
from tests.trainer.rank_processes import Launcher
from tests.trainer.sample_tasks import Points, ProbeConfig

ALIKE = Facts(node="a", config="1", data="d", torch="2.13", gpu="H100 (9.0)")


@pytest.mark.parametrize(
    ("odd", "change", "sentence", "must"),
    [
        ([2], {"torch": "2.11"}, "rank 2 on n2 has torch 2.11, the others 2.13", False),
        ([0], {"gpu": "A100"}, "rank 0 on n0 has GPU A100, the others H100 (9.0)", False),
        ([1, 3], {"nccl": "2.2"}, "ranks 1, 3 have NCCL 2.2, the others none", False),
        (
            [1],
            {"driver": "550.54"},
            "rank 1 on n1 has NVIDIA driver 550.54, the others none",
            False,
        ),
        ([1], {"data": "x"}, "rank 1 on n1 has data x, the others d", True),
        (
            [4],
            {"config": "2"},
            "rank 4 on n4 has a configuration that is not that of the others",
            True,
        ),
    ],
)
def test_the_odd_rank_is_named(
    odd: list[int], change: dict[str, str], sentence: str, must: bool
) -> None:
    everyone = [replace(ALIKE, node=f"n{rank}") for rank in range(5)]
    assert differences(everyone) == []
    for rank in odd:
        everyone[rank] = replace(everyone[rank], **change)  # type: ignore[arg-type]
    assert differences(everyone) == [(sentence, must)]


@pytest.mark.parametrize(
    "kind", ["NVIDIA UNIX x86_64 Kernel Module", "NVIDIA UNIX Open Kernel Module for x86_64"]
)
def test_the_driver_is_what_the_kernel_module_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(preflight, "_DRIVER_FILE", file)
    assert preflight._driver() == ""
    file.write_text(f"NVRM version: {kind}  570.124.06  Wed Feb 26\nGCC version:  gcc 12.3.0\n")
    assert preflight._driver() == "570.124.06"


def test_of_two_the_first_is_the_usual_one() -> None:
    ((sentence, _),) = differences([ALIKE, replace(ALIKE, node="b", python="3.9")])
    assert sentence == "rank 1 on b has Python 3.9, the others none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code", "sentence"),
    [
        ("config", 2, "preflight: rank 1 on {} has a configuration that is not that of the others"),
        ("data", 2, "preflight: rank 1 on {} has data Points, 49 samples"),
        ("torch", 1, "preflight: rank 1 on {} has torch 1.0.0, the others"),
        ("absent", 2, 'rank 1 on {}: data folder "/data/flowers" does not exist'),
        ("broken", 1, "rank 1 on {}: RuntimeError: the probe cannot be built"),
    ],
)
def test_every_rank_ends_with_one_sentence(
    launcher: Launcher, what: str, code: int, sentence: str
) -> None:
    gang = launcher.call("probes:odd_rank", what, world=2)
    assert gang.wait(30) == [code] * 2
    assert gang.err(0).startswith(sentence.format(socket.gethostname()))
    assert gang.err(0).count("\n") == 1
    assert ("Traceback" in gang.err(1)) == (what == "broken")


def test_mixed_versions_only_warn_when_that_is_allowed(launcher: Launcher) -> None:
    gang = launcher.call("probes:odd_rank", "mixed", world=2)
    assert gang.wait() == [0, 0]
    (warning,) = gang.events("warning")
    assert "has torch 1.0.0, the others" in warning["message"]
    (start,) = gang.events("start")
    assert (start["backend"], start["interfaces"]) == ("gloo", ["lo"])


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        (["--task.refuse_rank=1"], 2, "rank 1, update 3: label 7 is not one of the 3 classes\n"),
        (
            ["--task.die_rank=1", "--task.die_after=2", "--task.die_how=raise"],
            1,
            "rank 1, update 3: RuntimeError: the probe shall die\n",
        ),
    ],
)
def test_a_failure_in_an_update_is_told_with_its_place(
    launcher: Launcher, how: list[str], code: int, sentence: str
) -> None:
    gang = launcher.train("--task=sample_tasks:build", "--global_batch=10", *how, world=2)
    codes = gang.wait(30)
    assert codes[1] == code
    assert codes[0] == 1  # its peer has gone
    assert gang.err(1).startswith(sentence)
    assert ("Traceback" in gang.err(1)) == (code == 1)
    assert gang.err(0).startswith("rank 0, update 3: ")


def place(host: str, port: int) -> tuple[Ranks, dict[str, str]]:
    ranks = Ranks(rank=3, world_size=4, local_world_size=4, launched=True)
    return ranks, {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(Refusal) as caught:
        reach.require_reach(*place("node-0.nowhere", 29500), patience=0.1)
    assert str(caught.value) == (
        'network: rank 3 cannot resolve "node-0.nowhere", the name of node 0:'
        " Name or service not known"
    )
    assert caught.value.own


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(Refusal, match=r"rank 3 cannot reach node 0 at 10.0.0.1:29500: no answer"):
        reach.require_reach(*place("10.0.0.1", 29500), patience=0.1)


def test_a_host_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach.require_reach(*place("127.0.0.1", port))
    reach.require_reach(*place("127.0.0.1", port))  # refused: rank 0 is not there yet
    assert reach.interface_to("127.0.0.1") == "lo"


IB_LOG = """\
node1:71:71 [0] NCCL INFO Bootstrap: Using eth0:10.0.3.7<0>
node1:71:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.3.7<0>
node1:71:90 [0] NCCL INFO Using network IB
"""
SOCKET_LOG = """\
node1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.7<0>
node1:71:90 [0] NCCL INFO NET/IB : No device found.
node1:71:90 [0] NCCL INFO NET/Socket : Using [0]eth1:10.0.4.7<0>
node1:71:90 [0] NCCL INFO Using network Socket
"""


@pytest.mark.parametrize(
    ("log", "route"),
    [
        (IB_LOG, nccl_log.Route("IB", ("mlx5_0", "mlx5_1"))),
        (SOCKET_LOG.replace("eth1", "eth0"), nccl_log.Route("Socket", ("eth0",))),
        ("nothing of the kind", nccl_log.Route()),
    ],
)
def test_nccl_tells_its_network(log: str, route: nccl_log.Route) -> None:
    assert nccl_log.parse(log) == route


def test_a_log_that_the_user_wants_stays_where_it_is() -> None:
    environ: dict[str, str] = {}
    path = nccl_log.listen(environ)
    assert path
    assert environ["NCCL_DEBUG_FILE"] == str(path)
    path.write_text(IB_LOG)
    assert nccl_log.read(path).network == "IB"
    path.unlink()
    assert nccl_log.read(path) == nccl_log.Route()
    wanted = {"NCCL_DEBUG": "WARN"}
    assert nccl_log.listen(wanted) is None
    assert wanted == {"NCCL_DEBUG": "WARN"}
    mine = nccl_log.listen({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/x/%h.%p"})
    assert str(mine).startswith(f"/x/{socket.gethostname()}.")


class Restless:
    """Samples that no seed from outside makes equal."""

    def __init__(self, size: int) -> None:
        self.size, self.generator = size, np.random.default_rng()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {"x": self.generator.normal(size=3), "y": index}


class Stream:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it may be read once only")


def test_a_fingerprint_tells_data_apart_and_equal_data_not() -> None:
    points = Points(20, 1, ProbeConfig(noise=0.3))
    assert fingerprint(points) == fingerprint(Points(20, 1, ProbeConfig(noise=0.3)))
    assert fingerprint(points).startswith("Points, 20 samples, ")
    assert fingerprint(points) != fingerprint(Points(20, 2, ProbeConfig(noise=0.3)))
    assert fingerprint(points) != fingerprint(Points(21, 1, ProbeConfig(noise=0.3)))
    assert fingerprint(Restless(5)) == fingerprint(Restless(5)) != fingerprint(Restless(6))
    assert fingerprint(Stream()) == "Stream"
    assert fingerprint(None) == "NoneType"
    for values in ([b"a"], ["a"], [random.Random], [torch.ones(2)], [(1, {"a": 2.0})]):
        assert fingerprint(values) == fingerprint(list(values))
