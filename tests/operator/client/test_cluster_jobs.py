"""The client of a cluster: reads, changes, and output of pods that are replaced."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.finished import CONFIG_MAP, entry_text
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.summary import JobSummary
from ddp_operator.client import (
    ClusterError,
    NoSuchJobError,
    RequestError,
    WaitTimeoutError,
    connect,
)
from ddp_operator.client.code import MOST_BYTES
from ddp_operator.report.rows import state_of
from tests.operator.client.jobs_api import JOBS, JobsApi, PodLog
from tests.operator.report.support import job, progress
from tests.operator.support import job_manifest


def summary(reason: str, message: str = "as planned", value: str = "Unknown") -> dict[str, Any]:
    return {
        "type": "Succeeded",
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }


def running(name: str = "digits", **spec: Any) -> dict[str, Any]:
    return {
        **job_manifest(name, **{"nodes": 2, **spec}),
        "status": {"attempt": 1, "conditions": [summary("Running")], "ready": "2/2"},
    }


def finish(api: JobsApi, found: dict[str, Any]) -> None:
    status = {
        **found["status"],
        "completionTime": "2026-03-01T12:30:00Z",
        "conditions": [summary("Completed", "all ranks exited with 0", "True")],
    }
    api.put({**found, "status": status})


def test_jobs_are_listed_and_read_as_typed_models(api: JobsApi) -> None:
    api.put(running())
    api.put(running("other"))
    client = connect()
    assert [one["metadata"]["name"] for one in client.list()] == ["digits", "other"]
    found = client.get("digits").read()
    assert (found.spec.nodes, found.status.attempt) == (2, 1)
    with pytest.raises(NoSuchJobError, match=r"there is no DDPJob 'digts' in the namespace"):
        client.get("digts")


def test_suspend_resume_and_scale_change_only_their_field(api: JobsApi) -> None:
    api.put(running())
    found = connect().get("digits")
    found.suspend()
    assert found.read().spec.suspend
    found.resume()
    found.scale(4)
    assert (found.read().spec.suspend, found.read().spec.nodes) == (False, 4)
    changes = [(method, body) for method, _, body in api.requests if method == "PATCH"]
    assert changes == [
        ("PATCH", {"spec": {"suspend": True}}),
        ("PATCH", {"spec": {"suspend": False}}),
        ("PATCH", {"spec": {"replicas": 4}}),
    ]


def test_deleted_job_is_gone(api: JobsApi) -> None:
    api.put(running())
    client = connect()
    client.get("digits").delete()
    assert client.list() == []
    with pytest.raises(NoSuchJobError):
        client.backend.delete("digits")


@pytest.mark.usefixtures("api")
def test_submitted_job_is_created_with_its_settings() -> None:
    manifest = {**job_manifest(), "metadata": {"name": "digits"}}
    found = connect().submit(manifest, settings=["config.epochs=5", "nodes=3"])
    assert found.read().metadata.namespace == "team-a"
    assert found.read().spec.config == {"epochs": 5}
    assert "nodes" not in manifest["spec"], "the caller's object is unchanged"
    with pytest.raises(RequestError, match="a DDPJob 'digits' exists already in the namespace"):
        connect().submit(manifest)


def test_job_of_another_namespace_is_not_moved_silently(api: JobsApi) -> None:
    manifest = {**job_manifest(), "metadata": {"name": "digits", "namespace": "team-b"}}
    with pytest.raises(RequestError, match="names the namespace 'team-b', and ddpjob uses"):
        connect().submit(manifest)
    assert api.requests == []
    connect("team-b").submit(manifest)
    assert [one["metadata"]["namespace"] for one in connect("team-b").list()] == ["team-b"]


def test_wrong_setting_of_the_loop_is_refused_before_any_request(api: JobsApi) -> None:
    manifest = {**job_manifest(), "metadata": {"name": "digits"}}
    with pytest.raises(InvalidJobError, match="epoch"):
        connect().submit(manifest, settings=["config.epoch=5"])
    assert api.requests == []


def test_code_of_a_folder_is_shipped_in_a_config_map_that_the_job_owns(
    api: JobsApi, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    (source / "net").mkdir(parents=True)
    (source / "train.py").write_text("print('hello')\n")
    (source / "net" / "model.py").write_bytes(b"\xff\xfe")
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("secret")
    (source / "link.py").symlink_to("/etc/passwd")
    manifest = {
        **job_manifest(command=["python", "/code/train.py"]),
        "metadata": {"name": "digits"},
    }
    made = connect().submit(manifest, code=source).manifest()
    [volume] = made["spec"]["volumes"]
    paths = {item["key"]: item["path"] for item in volume["configMap"]["items"]}
    assert sorted(paths.values()) == ["net/model.py", "train.py"]
    assert {"name": "PYTHONPATH", "value": "/code"} in made["spec"]["env"]
    name = volume["configMap"]["name"]
    stored = api.objects[f"/api/v1/namespaces/team-a/configmaps/{name}"]
    assert stored["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert stored["immutable"] is True
    assert list(stored["data"].values()) == ["print('hello')\n"]
    assert list(stored["binaryData"].values()) == ["//4="]
    assert "secret" not in str(stored)


def test_refused_config_map_leaves_no_job_behind(api: JobsApi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    api.refused["POST", "/configmaps"] = (403, "user eve cannot create configmaps")
    manifest = {**job_manifest(), "metadata": {"name": "digits"}}
    with pytest.raises(ClusterError, match="user eve cannot create configmaps"):
        connect().submit(manifest, code=tmp_path)
    assert connect().list() == []


def test_folder_that_is_too_large_is_refused_with_its_limit(api: JobsApi, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x" * (MOST_BYTES + 1))
    manifest = {**job_manifest(), "metadata": {"name": "digits"}}
    with pytest.raises(RequestError, match=r"at most 500 files and 1,000,000 bytes; weights\.bin"):
        connect().submit(manifest, code=tmp_path)
    assert api.requests == []


@pytest.mark.slow
def test_wait_returns_the_ended_job_and_reports_each_change(api: JobsApi) -> None:
    found = running()
    api.put(found)
    seen: list[str] = []

    def change(job: DDPJob) -> None:
        seen.append(state_of(job))
        if len(seen) == 1:
            finish(api, found)

    ended = connect().get("digits").wait(timeout=60, on_change=change)
    assert ended.status.completion_time is not None
    assert seen == ["Running", "Completed"]


def test_wait_ends_with_its_timeout(api: JobsApi) -> None:
    api.put(running())
    with pytest.raises(WaitTimeoutError, match=r"digits did not reach its end within 0 s; it is"):
        connect().get("digits").wait(timeout=0)


def test_wait_for_a_state_returns_at_once_if_it_is_reached(api: JobsApi) -> None:
    api.put(running())
    assert connect().get("digits").wait("Running", timeout=0).status.attempt == 1


def test_logs_of_all_pods_are_merged_by_time(api: JobsApi) -> None:
    api.put(running())
    for pod, rank in (("digits-0", 0), ("digits-1", 1)):
        api.logs[pod] = log = PodLog()
        log.add(rank / 2, "ddp-agent: attempt 1: torchrun --nnodes=2")
        for step in range(3):
            log.add(1 + step + rank / 2, f"[rank {rank}] step {step}")
    lines = list(connect().get("digits").logs())
    texts = [(line.rank, line.attempt, line.text) for line in lines if line.rank is not None]
    assert texts == [(rank, 1, f"step {step}") for step in range(3) for rank in (0, 1)]
    only = list(connect().get("digits").logs(ranks=[1]))
    assert {line.rank for line in only} == {1}
    assert list(connect().get("digits").logs(attempt=2)) == []


@pytest.fixture
def _in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_tokyo")
@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=-7))])
def test_logs_begin_at_a_time_in_any_zone(api: JobsApi, zone: tzinfo | None) -> None:
    api.put(running(nodes=1))
    api.logs["digits-0"] = log = PodLog()
    for second in range(4):
        log.add(second, f"[rank 0] line {second}")
    since = datetime(2026, 3, 1, 12, 0, 2, tzinfo=UTC).astimezone(zone)
    if zone is None:
        since = since.replace(tzinfo=None)
    lines = connect().get("digits").logs(since=since)
    assert [line.text for line in lines] == ["line 2", "line 3"]


def test_missing_pod_is_noted_and_the_others_are_shown(api: JobsApi) -> None:
    api.put(running())
    api.logs["digits-1"] = log = PodLog()
    log.add(0, "[rank 1] here")
    found = connect().get("digits")
    assert [line.text for line in found.logs()] == ["here"]
    assert found.backend.notes() == ["digits-0: the pod is gone"]


def test_viewer_who_may_not_list_pods_reads_their_logs_by_name(api: JobsApi) -> None:
    api.put(running())
    api.refused["GET", "/pods"] = (403, "user eve cannot list pods")
    api.logs["digits-0"] = log = PodLog()
    log.add(0, "[rank 0] here")
    assert [line.text for line in connect().get("digits").logs()] == ["here"]


@pytest.mark.slow
def test_followed_logs_have_each_line_once_across_two_replaced_pods(api: JobsApi) -> None:
    found = running()
    api.put(found)
    api.logs = {"digits-0": PodLog(), "digits-1": PodLog()}
    written: list[str] = []

    def write() -> None:
        second = 0.0
        for attempt in (1, 2, 3):
            for pod, rank in (("digits-0", 0), ("digits-1", 1)):
                api.logs[pod].add(second, f"ddp-agent: attempt {attempt}: torchrun --nnodes=2")
                for _ in range(40):
                    second += 0.01
                    text = f"line {len(written)}"
                    written.append(text)
                    api.logs[pod].add(second, f"[rank {rank}] {text}")
                    time.sleep(0.02)
            if attempt < 3:  # The pod of node 1 is killed, and another one of its name starts.
                old = api.logs.pop("digits-1")
                time.sleep(0.1)
                old.end()
                time.sleep(0.2)
                api.logs["digits-1"] = PodLog()
        for log in api.logs.values():
            log.end()
        finish(api, found)

    writer = threading.Thread(target=write)
    writer.start()
    lines = list(connect().get("digits").logs(follow=True))
    writer.join()
    texts = [line.text for line in lines if line.rank is not None]
    assert sorted(texts) == sorted(written)
    assert {line.attempt for line in lines} == {1, 2, 3}


def test_copies_on_the_volume_have_the_output_of_pods_that_are_gone(
    api: JobsApi, tmp_path: Path
) -> None:
    api.put(running(procsPerNode=2))
    for attempt, node, local, name, text in (
        (1, 0, 0, "stdout.log", "a"),
        (1, 1, 1, "stdout.log.old", "b"),
        (1, 1, 1, "stderr.log", "c"),
        (2, 0, 0, "stdout.log", "shown by the pod"),
        (2, 1, 0, "stdout.log", "e"),
    ):
        folder = tmp_path / f"logs/attempt-{attempt}/node-{node}/uid-{attempt}_x/attempt_0/{local}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    api.logs["digits-0"] = log = PodLog()
    log.add(0, "ddp-agent: attempt 2: torchrun --nnodes=2")
    log.add(1, "[rank 0] d")
    found = connect().get("digits")
    lines = list(found.logs(run_directory=tmp_path))
    ranks = [(one.attempt, one.rank, one.text) for one in lines if one.rank is not None]
    assert ranks == [(1, 0, "a"), (1, 3, "b"), (1, 3, "c"), (2, 2, "e"), (2, 0, "d")]
    with pytest.raises(RequestError, match="no such directory"):
        found.logs(run_directory=tmp_path / "none")
    with pytest.raises(RequestError, match="cannot be followed"):
        found.logs(run_directory=tmp_path, follow=True)


def test_metrics_are_rows_of_progress_and_evaluations(api: JobsApi) -> None:
    api.put(job(attempt=1))
    api.logs["digits-0"] = log = PodLog()
    log.add(0, "[rank 0] " + progress(5, 10).decode().strip())
    rows = connect("team-a").get("digits").metrics()
    assert [(row["kind"], row["step"]) for row in rows] == [("progress", 10)]
    assert rows[0]["loss"] is not None
    log.add(1, "[rank 0] 2026-03-01T12:00:09Z [attempt 2] step 20 of 50: loss 0.5, lr 0.1")
    found = connect("team-a").get("digits")
    steps = {(row["attempt"], row["step"]) for row in found.metrics()}
    assert steps == {(1, 10), (2, 20)}
    assert [line.attempt for line in found.logs()] == [1, 2]


def test_cluster_without_the_crd_is_named_in_one_sentence(api: JobsApi, tmp_path: Path) -> None:
    path = api.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace(api.address, f"{api.address}/other"))
    with pytest.raises(ClusterError, match="the cluster of the context 'fake' has no DDPJobs"):
        connect().list()
    assert api.requests[-1][1].startswith("/other")
    assert JOBS in api.requests[-1][1]


def test_refused_request_names_the_roles_of_the_chart(api: JobsApi) -> None:
    api.refused["GET", "/ddpjobs"] = (403, "user eve cannot list ddpjobs")
    sentence = "user eve cannot list ddpjobs; the chart's roles ddpjob-viewer and ddpjob-editor"
    with pytest.raises(ClusterError, match=sentence):
        connect().list()


def test_unreachable_server_is_named_with_its_context(api: JobsApi, tmp_path: Path) -> None:
    path = api.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace(api.address, "http://127.0.0.1:1"))
    sentence = "127.0.0.1:1 of the context 'fake' cannot be reached: Connection refused"
    with pytest.raises(ClusterError, match=sentence):
        connect().list()


def keep_finished(api: JobsApi, namespace: str, *jobs: JobSummary) -> None:
    """Store a list of finished jobs."""
    data = {one.uid: entry_text(one) for one in jobs}
    metadata = {"name": CONFIG_MAP, "namespace": namespace}
    path = f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}"
    api.objects[path] = {"metadata": metadata, "data": data}


def gone(name: str, hour: int = 12, **fields: Any) -> JobSummary:
    """Return the summary of a job that completed at an hour."""
    given = {"name": name, "uid": f"uid-{name}", "state": "Completed", "attempts": 2}
    times = {"creationTime": "2026-03-01T08:00:00Z", "completionTime": f"2026-03-01T{hour}:00:00Z"}
    return JobSummary.model_validate({**given, **times, **fields})


def test_finished_jobs_are_those_in_the_lists_of_the_namespaces(api: JobsApi) -> None:
    client = connect()
    assert client.finished() == []
    keep_finished(api, "team-a", gone("early", 10), gone("late", 14))
    keep_finished(api, "team-b", gone("middle", 12))
    assert [one.summary.name for one in client.finished()] == ["late", "early"]
    found = client.finished(everywhere=True)
    assert [(one.namespace, one.summary.name) for one in found] == [
        ("team-a", "late"),
        ("team-b", "middle"),
        ("team-a", "early"),
    ]


def test_user_without_the_right_to_the_list_gets_a_note(api: JobsApi) -> None:
    api.refused["GET", "/configmaps"] = (403, "configmaps is forbidden")
    client = connect()
    assert client.finished() == []
    assert client.backend.notes() == ["deleted jobs are not shown: configmaps is forbidden"]
    api.refused["GET", "/configmaps"] = (500, "no")
    with pytest.raises(ClusterError):
        client.finished()
