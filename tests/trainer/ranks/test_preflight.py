"""Preflight: checks that ranks are alike and node 0 is reachable, before training starts."""

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
from ddp_trainer.errors import ReportedError
from ddp_trainer.ranks import nccl_log, preflight, reach
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.ranks.preflight import RankInfo, find_differences
from tests.trainer.rank_processes import Launcher
from tests.trainer.sample_tasks import Points, ProbeConfig

ALIKE = RankInfo(node="a", config="1", data="d", torch="2.13", gpu="H100 (9.0)")


@pytest.mark.parametrize(
    ("odd", "change", "sentence", "permanent"),
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
            "rank 4 on n4 has a configuration that differs from that of the others",
            True,
        ),
    ],
)
def test_preflight_names_the_rank_that_differs(
    odd: list[int], change: dict[str, str], sentence: str, permanent: bool
) -> None:
    infos = [replace(ALIKE, node=f"n{rank}") for rank in range(5)]
    assert find_differences(infos) == []
    for rank in odd:
        infos[rank] = replace(infos[rank], **change)  # type: ignore[arg-type]
    assert find_differences(infos) == [(sentence, permanent)]


def test_rank_with_other_code_is_named_in_a_warning() -> None:
    infos = [replace(ALIKE, node=f"n{rank}", source="a") for rank in range(3)]
    infos[2] = replace(infos[2], source="b")
    assert find_differences(infos) == []
    ((sentence, permanent),) = find_differences(infos, [preflight._SOURCE])
    assert sentence == "rank 2 on n2 has code of the task that differs from that of the others"
    assert not permanent


@pytest.mark.parametrize(
    "kind", ["NVIDIA UNIX x86_64 Kernel Module", "NVIDIA UNIX Open Kernel Module for x86_64"]
)
def test_driver_version_is_read_from_the_kernel_module(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(preflight, "_DRIVER_FILE", file)
    assert preflight._driver() == ""
    file.write_text(f"NVRM version: {kind}  570.124.06  Wed Feb 26\nGCC version:  gcc 12.3.0\n")
    assert preflight._driver() == "570.124.06"


def test_second_of_two_different_ranks_is_named() -> None:
    ((sentence, _),) = find_differences([ALIKE, replace(ALIKE, node="b", python="3.9")])
    assert sentence == "rank 1 on b has Python 3.9, the others none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "code", "sentence"),
    [
        (
            "config",
            2,
            "preflight: rank 1 on {} has a configuration that differs from that of the others",
        ),
        ("data", 2, "preflight: rank 1 on {} has data Points, 49 samples"),
        ("torch", 1, "preflight: rank 1 on {} has torch 1.0.0, the others"),
        ("absent", 2, 'rank 1 on {}: data folder "/data/flowers" does not exist'),
        ("broken", 1, "rank 1 on {}: RuntimeError: the probe cannot be built"),
    ],
)
def test_every_rank_exits_when_one_rank_fails_the_preflight(
    launcher: Launcher, case: str, code: int, sentence: str
) -> None:
    gang = launcher.call("probes:train_with_odd_rank", case, world=2)
    assert gang.wait(30) == [code] * 2
    assert gang.err(0).startswith(sentence.format(socket.gethostname()))
    assert gang.err(0).count("\n") == 1
    assert ("Traceback" in gang.err(1)) == (case == "broken")


def test_allow_mixed_turns_a_version_difference_into_a_warning(launcher: Launcher) -> None:
    gang = launcher.call("probes:train_with_odd_rank", "mixed", world=2)
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
            "rank 1, update 3: RuntimeError: the probe must fail\n",
        ),
    ],
    ids=["input error", "exception"],
)
def test_error_in_an_update_names_rank_and_update(
    launcher: Launcher, how: list[str], code: int, sentence: str
) -> None:
    gang = launcher.train("--task=sample_tasks:build", "--global_batch=10", *how, world=2)
    codes = gang.wait(30)
    assert codes[1] == code
    assert codes[0] == 1  # it lost its peer
    assert gang.err(1).startswith(sentence)
    assert ("Traceback" in gang.err(1)) == (code == 1)
    assert gang.err(0).startswith("rank 0, update 3: ")


def launched_rank(host: str, port: int) -> tuple[Ranks, dict[str, str]]:
    ranks = Ranks(rank=3, world_size=4, local_world_size=4, launched=True)
    return ranks, {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def test_unresolvable_name_of_node_0_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(ReportedError) as caught:
        reach.wait_until_reachable(*launched_rank("node-0.nowhere", 29500), patience=0.1)
    assert str(caught.value) == (
        'network: rank 3 cannot resolve "node-0.nowhere", the name of node 0:'
        " Name or service not known"
    )
    assert caught.value.rank_specific


def test_node_0_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(
        ReportedError, match=r"rank 3 cannot reach node 0 at 10.0.0.1:29500: no answer"
    ):
        reach.wait_until_reachable(*launched_rank("10.0.0.1", 29500), patience=0.1)


def test_host_that_refuses_the_connection_counts_as_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach.wait_until_reachable(*launched_rank("127.0.0.1", port))
    # The closed port refuses the connection, as before rank 0 listens.
    reach.wait_until_reachable(*launched_rank("127.0.0.1", port))
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
        (IB_LOG, nccl_log.NcclRoute("IB", ("mlx5_0", "mlx5_1"))),
        (SOCKET_LOG.replace("eth1", "eth0"), nccl_log.NcclRoute("Socket", ("eth0",))),
        ("unrelated text", nccl_log.NcclRoute()),
    ],
)
def test_nccl_log_shows_network_and_interfaces(log: str, route: nccl_log.NcclRoute) -> None:
    assert nccl_log.parse(log) == route


def test_nccl_log_settings_of_the_user_are_kept() -> None:
    environ: dict[str, str] = {}
    path = nccl_log.enable(environ)
    assert path
    assert environ["NCCL_DEBUG_FILE"] == str(path)
    path.write_text(IB_LOG)
    assert nccl_log.read(path).network == "IB"
    path.unlink()
    assert nccl_log.read(path) == nccl_log.NcclRoute()
    environ_of_user = {"NCCL_DEBUG": "WARN"}
    assert nccl_log.enable(environ_of_user) is None
    assert environ_of_user == {"NCCL_DEBUG": "WARN"}
    mine = nccl_log.enable({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/x/%h.%p"})
    assert str(mine).startswith(f"/x/{socket.gethostname()}.")


class UnseededData:
    """Data whose samples differ in every read, because global seeds do not affect them."""

    def __init__(self, size: int) -> None:
        self.size, self.generator = size, np.random.default_rng()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {"x": self.generator.normal(size=3), "y": index}


class Stream:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a fingerprint must not read a stream")


def test_data_fingerprints_are_equal_only_for_equal_data() -> None:
    points = Points(20, 1, ProbeConfig(noise=0.3))
    assert fingerprint(points) == fingerprint(Points(20, 1, ProbeConfig(noise=0.3)))
    assert fingerprint(points).startswith("Points, 20 samples, ")
    assert fingerprint(points) != fingerprint(Points(20, 2, ProbeConfig(noise=0.3)))
    assert fingerprint(points) != fingerprint(Points(21, 1, ProbeConfig(noise=0.3)))
    assert (
        fingerprint(UnseededData(5)) == fingerprint(UnseededData(5)) != fingerprint(UnseededData(6))
    )
    assert fingerprint(Stream()) == "Stream"
    assert fingerprint(None) == "NoneType"
    for values in ([b"a"], ["a"], [random.Random], [torch.ones(2)], [(1, {"a": 2.0})]):
        assert fingerprint(values) == fingerprint(list(values))
