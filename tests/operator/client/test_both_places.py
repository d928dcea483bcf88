"""The client has the same verbs for the jobs of a cluster and for the runs of this machine."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.job import InvalidJobError
from ddp_operator.client import (
    Client,
    NoSuchJobError,
    RequestError,
    WaitTimeoutError,
    connect,
    local,
)
from ddp_operator.client.run_folder import add_event, locked, save_job
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import running, summary
from tests.operator.report.support import progress
from tests.operator.support import job_manifest

Put = Callable[[dict[str, Any]], None]
LINES = (
    (0, "ddp-agent: attempt 1: torchrun --nnodes=2"),
    (1, f"[rank 0] {progress(5, 10).decode().strip()}"),
    (2, "[rank 0] hello"),
)
STARTED = {"type": "Normal", "reason": "Started", "message": "attempt 1 starts"}


def on_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, Put]]:
    api = JobsApi()
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(folder)))
    api.put(running())
    api.logs["digits-0"] = log = PodLog()
    for second, text in LINES:
        log.add(second, text)
    about = {"kind": "DDPJob", "name": "digits", "uid": running()["metadata"]["uid"]}
    event = {"metadata": {"name": "digits.1"}, "involvedObject": about, **STARTED}
    api.objects["/api/v1/namespaces/team-a/events/digits.1"] = event
    yield connect(), api.put
    api.close()


def on_this_machine(folder: Path, _: pytest.MonkeyPatch) -> Iterator[tuple[Client, Put]]:
    home = folder / "digits"
    (home / "logs").mkdir(parents=True)
    text = "".join(f"{text}\n" for _, text in LINES)
    (home / "logs" / "digits-0.log").write_text(text)
    with locked(home):
        save_job(home, running())
        add_event(home, running(), STARTED)
        yield local(folder), lambda job: save_job(home, job)


@pytest.fixture(params=[on_cluster, on_this_machine], ids=["cluster", "machine"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Client, Put]]:
    """Yield a client of each place with the running job digits, and how to change that job."""
    yield from request.param(tmp_path, monkeypatch)


def test_job_is_listed_and_read(place: tuple[Client, Put]) -> None:
    client, _ = place
    assert [one["kind"] for one in client.list()] == ["DDPJob"]
    job = client.get("digits")
    assert (job.state, job.status.attempt, job.read().spec.nodes) == ("Running", 1, 2)
    assert job.why().command.startswith("ddpjob watch digits")


def test_missing_job_is_refused_by_every_verb(place: tuple[Client, Put]) -> None:
    backend = place[0].backend
    for verb in (
        lambda: place[0].get("digts"),
        lambda: backend.delete("digts"),
        lambda: backend.scale("digts", 2),
        lambda: backend.events("digts"),
        lambda: list(backend.history("digts")),
    ):
        with pytest.raises(NoSuchJobError, match="'digts' in the"):
            verb()


def test_output_events_and_metrics_are_the_same(place: tuple[Client, Put]) -> None:
    job = place[0].get("digits")
    lines = list(job.logs())
    assert [(one.rank, one.attempt, one.pod) for one in lines] == [
        (None, 1, "digits-0"),
        (0, 1, "digits-0"),
        (0, 1, "digits-0"),
    ]
    assert [one.text for one in job.logs(ranks=[0])][-1] == "hello"
    assert list(job.logs(ranks=[7])) == []
    assert [(one["reason"], one["kind"]) for one in job.events()] == [("Started", "Event")]
    assert [(row["kind"], row["step"]) for row in job.metrics()] == [("progress", 10)]
    assert json.dumps(job.metrics())


def test_wait_returns_at_a_state_and_at_the_end(place: tuple[Client, Put]) -> None:
    client, put = place
    job = client.get("digits")
    assert job.wait("Running", timeout=0).status.attempt == 1
    with pytest.raises(WaitTimeoutError, match="digits did not reach its end within 0 s"):
        job.wait(timeout=0)
    done = running()
    done["status"]["conditions"] = [summary("Failed", "rank 1 failed", "False")]
    put(done)
    assert job.wait("Running", timeout=0).status.conditions[0].message == "rank 1 failed"
    assert job.why().problem


def test_job_that_exists_or_is_invalid_is_not_submitted(place: tuple[Client, Put]) -> None:
    client, _ = place
    manifest = {**job_manifest(), "metadata": {"name": "digits"}}
    with pytest.raises(RequestError, match=r"digits.? (exists already|already runs)"):
        client.submit(manifest)
    with pytest.raises(InvalidJobError, match=r"spec\.nodes"):
        client.submit(manifest, settings=["nodes=0"])
    with pytest.raises(RequestError, match="--code: must be a folder"):
        client.submit(manifest, code="/none")
