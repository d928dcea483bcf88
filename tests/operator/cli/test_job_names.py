"""Names of jobs and namespaces that cannot exist: each verb refuses them before any request."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddp_operator.cli.main import main
from ddp_operator.client import ClusterError, NoSuchJobError, connect
from tests.operator.client.jobs_api import JOBS, JobsApi
from tests.operator.client.test_cluster_jobs import running

VERBS = {
    "checkpoints download": ["-o", "none.safetensors"],
    "checkpoints list": [],
    "checkpoints verify": [],
    "delete": ["--yes"],
    "events": [],
    "logs": ["-f"],
    "profile": [],
    "resume": [],
    "scale": ["3"],
    "stacks": [],
    "status": [],
    "support-bundle": [],
    "suspend": [],
    "wait": [],
    "watch": [],
    "why": [],
}
"""Verbs with a job, and the arguments after its name."""
NAMES = ["", "/", ".", "..", "?", "#", "a/b", "digits/scale", "digits?x=1", "%2e%2e", "\udcff"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(ended: Result) -> str:
    """Return the sentence of a command that ended with exit code 2, and with no traceback."""
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert isinstance(ended.exception, SystemExit)
    (line,) = ended.stderr.splitlines()
    return line


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verb", VERBS)
def test_name_that_no_job_can_have_is_refused_without_a_request(
    cluster: JobsApi, verb: str, name: str
) -> None:
    cluster.put(running())
    sentence = refused(run(*verb.split(), name, *VERBS[verb]))
    assert sentence == f"ddpjob: there is no DDPJob {name!r} in the namespace 'team-a'"
    assert cluster.requests == []


@pytest.mark.usefixtures("cluster")
def test_report_of_an_empty_name_reads_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()  # A folder of a local run.
    assert "there is no DDPJob ''" in refused(run("report", ""))
    assert "there is no run '' in the folder ddp-runs" in refused(run("report", "", "--local"))
    assert "there is no run '..' in the folder" in refused(run("report", "..", "--local"))


@pytest.mark.parametrize("verb", ["delete", "scale", "status", "logs", "suspend"])
@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/b", "a/"])
def test_local_name_that_leaves_the_folder_is_refused(tmp_path: Path, verb: str, name: str) -> None:
    home = tmp_path / "runs"
    home.mkdir()
    (tmp_path / "job.json").write_text("{}")
    sentence = refused(run(verb, name, *VERBS[verb], "--dir", str(home)))
    assert sentence == f"ddpjob: there is no run {name!r} in the folder {home}"
    assert (tmp_path / "job.json").exists()


def test_node_of_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    for name in ("", "..", "a/b"):
        sentence = refused(run("node", "lose", name, "0", "--dir", str(tmp_path)))
        assert sentence == f"ddpjob: there is no run {name!r} in the folder {tmp_path}"


@pytest.mark.parametrize("namespace", ["..", "a/b", "team-a/ddpjobs/digits?", "#", "\udcff", "A"])
def test_namespace_that_cannot_exist_is_refused_without_a_request(
    cluster: JobsApi, namespace: str
) -> None:
    sentence = refused(run("list", "-n", namespace))
    assert sentence == f"ddpjob: the namespace must be a DNS label, got {namespace!r}"
    assert cluster.requests == []


def test_answer_of_another_kind_is_no_job(cluster: JobsApi) -> None:
    cluster.put(running())
    path = f"{JOBS}/namespaces/team-a/ddpjobs/digits"
    cluster.objects[path]["kind"] = "DDPJobList"
    with pytest.raises(ClusterError, match="must answer with a DDPJob, got 'DDPJobList'"):
        connect().get("digits")


def test_answer_without_items_is_no_list(cluster: JobsApi) -> None:
    cluster.put(running())
    client = connect()
    cluster.lists = False
    for call in (client.list, client.finished, client.get("digits").events):
        with pytest.raises(ClusterError, match="must answer with a list"):
            call()


def test_pod_name_in_a_status_cannot_leave_the_pods_of_the_namespace(cluster: JobsApi) -> None:
    found = running()
    found["status"]["firstPod"] = "../../team-b/pods/secret-0"
    cluster.put(found)
    job = connect().get("digits")
    assert job.metrics() == []
    assert job.backend.notes() == ["../../team-b/pods/secret-0: no pod can have this name"]
    assert not any("team-b" in path for _, path, _ in cluster.requests)


def test_client_refuses_an_empty_name_in_each_call(cluster: JobsApi) -> None:
    cluster.put(running())
    backend = connect().backend
    for call in (
        lambda: backend.delete(""),
        lambda: backend.scale("", 3),
        lambda: backend.set_spec("/", {"suspend": True}),
        lambda: backend.events(""),
    ):
        with pytest.raises(NoSuchJobError):
            call()
    assert cluster.requests == []
