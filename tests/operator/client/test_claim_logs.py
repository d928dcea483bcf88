"""Copies of logs on the claim of a cluster, which outlive the pods.

The reader's command really runs, on this machine in place of the pod.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_operator.cli.main import main
from ddp_operator.client import RequestError, connect, copied_logs
from ddp_operator.client import claim_logs as module
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_claim_reader import Cluster


@pytest.fixture
def cluster(api: JobsApi, tmp_path: Path) -> Cluster:
    return Cluster(api, tmp_path)


def put(cluster: Cluster, attempt: int, node: int, text: str, name: str = "stdout.log") -> Path:
    folder = cluster.run / f"logs/attempt-{attempt}/node-{node}/run_x.y-1/attempt_0/0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def texts(attempt: int | None = None) -> list[tuple[str, int | None, int | None, str]]:
    job = connect().get("digits")
    with copied_logs(job, attempt) as directory:
        lines = list(job.logs(attempt=attempt, run_directory=directory))
    assert directory is not None
    assert not directory.exists()
    return [(line.pod, line.attempt, line.rank, line.text) for line in lines]


def test_lines_of_a_pod_that_is_gone_come_from_the_claim(cluster: Cluster) -> None:
    put(cluster, 1, 0, "one\ntwo\n")
    put(cluster, 1, 1, "other\n", "stderr.log.old")
    put(cluster, 2, 0, "a copy of what the pod has\n")
    log = cluster.api.logs["digits-0"] = PodLog()
    log.add(0, "ddp-agent: attempt 2: torchrun")
    log.add(1, "[rank 0] of the pod")
    log.end()
    assert texts() == [
        ("digits-0", 1, 0, "one"),
        ("digits-0", 1, 0, "two"),
        ("digits-1", 1, 1, "other"),
        ("digits-0", 2, None, "ddp-agent: attempt 2: torchrun"),
        ("digits-0", 2, 0, "of the pod"),
    ]
    assert [name for name in cluster.api.objects if "reader" in name] == []


@pytest.mark.slow
def test_one_attempt_can_be_selected(cluster: Cluster) -> None:
    put(cluster, 1, 0, "one\n")
    put(cluster, 3, 0, "three\n")
    assert texts(3) == [("digits-0", 3, 0, "three")]
    with pytest.raises(RequestError, match=r"there is no copy of a log in .*/logs/attempt-4"):
        texts(4)


def test_ddpjob_logs_shows_copies(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, 1, 0, "one\n")
    monkeypatch.setattr("sys.argv", ["ddpjob", "logs", "digits", "--copies"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in {0, None}
    assert "one" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["-f", "--run-dir=x"])
def test_copies_exclude_other_sources(
    other: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ddpjob", "logs", "digits", "--copies", other])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--copies cannot be used with -f or --run-dir" in capsys.readouterr().err


def _link(packed: tarfile.TarFile, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc"
    packed.addfile(member)


def _file(packed: tarfile.TarFile, name: str, size: int = 3) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    packed.addfile(member, io.BytesIO(bytes(size)))


GOOD = "logs/attempt-1/node-0/run/attempt_0/0/stdout.log"
HOSTILE: dict[str, Callable[[tarfile.TarFile], None]] = {
    "above the folder": lambda packed: _file(packed, "logs/../../evil"),
    "absolute": lambda packed: _file(packed, "/tmp/evil"),
    "a folder above within a name": lambda packed: _file(packed, GOOD.replace("run", "..")),
    "a link in place of a file": lambda packed: _link(packed, GOOD),
    "a link in place of a folder": lambda packed: _link(packed, "logs/attempt-1"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_archive_of_a_hostile_rank_writes_nothing(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "below" / "run"
    target.mkdir(parents=True)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as packed:
        HOSTILE[kind](packed)
    module._unpack(tmp_path / "a.tgz", target)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "a.tgz"]


def test_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNPACKED", 1000)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as packed:
        _file(packed, GOOD, 600)
        _file(packed, GOOD.replace("stdout", "stderr"), 600)
    with pytest.raises(RequestError, match="more than 1,000 bytes: select one with --attempt"):
        module._unpack(tmp_path / "a.tgz", tmp_path)


def test_damaged_archive_is_one_sentence(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, 1, 0, "one\n" * 100)
    monkeypatch.setattr(module, "_pack", lambda *_: "head -c 500 /dev/zero > /tmp/logs.tgz")
    with pytest.raises(RequestError, match="the copies of the logs cannot be read"):
        texts()
