"""Stacks and traces of the ranks of a job on a cluster, from the logs of its pods."""

import re
from typing import Any

import pytest

from ddp_operator.client import ClusterError, RankStack, RequestError, connect
from ddp_operator.client import cluster_inspections as module
from ddp_wire.contract import ANNOTATION_INSPECTION
from ddp_wire.inspections import inspection_from_text
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import finish, running


class Ranks:
    """Pods of the job digits with one rank each, which answer when the annotation changes."""

    def __init__(self, api: JobsApi, *answering: int) -> None:
        self.api, self.questions = api, list[str | None]()
        api.put(running(procsPerNode=1))
        self.logs = [api.logs.setdefault(f"digits-{one}", PodLog()) for one in range(2)]
        self.answering = answering
        api.on_annotation = self.asked

    def asked(self, value: str | None) -> None:
        self.questions.append(value)
        question = inspection_from_text(value or "")
        for rank in self.answering if question is not None else ():
            log, head = self.logs[rank], f"ddp-agent: inspection {question and question.id}"
            log.add(1, f"ddp-agent: inspection other rank {rank}: not this question")
            if question is not None and question.steps is not None:
                log.add(2, f"{head}: {self.sentence}")
                continue
            log.add(2, f"{head} rank {rank}: Thread 0x1:")
            log.add(2, "[rank 0] a line between")
            log.add(2, f'{head} rank {rank}:   File "train.py", line {rank} in step')
            log.add(2, f"{head} rank {rank} ends")

    sentence = "rank 0 writes the trace of 5 updates to /checkpoints/x/profiles"


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)


def stack(rank: int) -> RankStack:
    return RankStack(rank, f'Thread 0x1:\n  File "train.py", line {rank} in step')


def test_stacks_of_all_ranks_are_read_and_the_annotation_is_removed(api: JobsApi) -> None:
    ranks = Ranks(api, 0, 1)
    assert connect().get("digits").stacks() == [stack(0), stack(1)]
    asked, removed = ranks.questions
    assert re.fullmatch("stacks:[0-9a-f]{8}", asked or "")
    assert removed is None


def test_ranks_that_answer_in_time_are_shown_without_the_others(api: JobsApi) -> None:
    Ranks(api, 1)
    assert connect().get("digits").stacks() == [stack(1)]


def test_gone_pod_does_not_hide_the_answers_of_others(api: JobsApi) -> None:
    Ranks(api, 1)
    del api.logs["digits-0"]
    assert connect().get("digits").stacks() == [stack(1)]


def test_each_question_has_its_own_answers(api: JobsApi) -> None:
    Ranks(api, 0, 1)
    job = connect().get("digits")
    assert job.stacks() == job.stacks()


def test_trace_is_requested(api: JobsApi) -> None:
    ranks = Ranks(api, 0)
    assert connect().get("digits").profile() == Ranks.sentence
    assert re.fullmatch("profile:[0-9a-f]{8}:5", ranks.questions[0] or "")


def test_refused_trace_is_an_error_with_the_sentence_of_the_agent(api: JobsApi) -> None:
    Ranks(api, 0).sentence = "refused: a trace needs spec.checkpoint"
    with pytest.raises(RequestError, match=r"^a trace needs spec\.checkpoint"):
        connect().get("digits").profile()


def test_trace_without_an_answer_is_an_error(api: JobsApi) -> None:
    Ranks(api)
    with pytest.raises(RequestError, match="no agent has answered within"):
        connect().get("digits").profile()


def test_job_without_ranks_is_not_asked(api: JobsApi) -> None:
    ranks = Ranks(api, 0, 1)
    finish(api, running())
    job = connect().get("digits")
    for ask in (job.stacks, job.profile):
        with pytest.raises(RequestError, match="digits is Completed, so it has no ranks now"):
            ask()
    assert ranks.questions == []


@pytest.mark.parametrize("steps", [0, 101])
def test_number_of_updates_has_a_limit(api: JobsApi, steps: int) -> None:
    Ranks(api, 0)
    with pytest.raises(RequestError, match="steps: must be from 1 to 100"):
        connect().get("digits").profile(steps)


def test_viewer_is_told_which_role_may_ask(api: JobsApi) -> None:
    Ranks(api, 0)
    api.refused["PATCH", "digits"] = 403, "forbidden"
    with pytest.raises(ClusterError, match="ddpjob-editor"):
        connect().get("digits").stacks()


def test_annotation_that_cannot_be_removed_does_not_hide_the_answer(api: JobsApi) -> None:
    ranks = Ranks(api, 0, 1)
    answer = ranks.asked

    def refuse_afterwards(value: str | None) -> None:
        answer(value)
        api.refused["PATCH", "digits"] = 500, "busy"

    api.on_annotation = refuse_afterwards
    assert len(connect().get("digits").stacks()) == 2
    found: dict[str, Any] = connect().get("digits").manifest()
    assert ANNOTATION_INSPECTION in found["metadata"]["annotations"]
