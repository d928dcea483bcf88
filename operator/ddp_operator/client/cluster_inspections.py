"""Ask the ranks of a job on a cluster, and read their answers from the logs of its pods.

The question is an annotation of the job, so the user needs no right but that to change the job. The
annotation is removed afterwards.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from ddp_operator.client.errors import RequestError
from ddp_operator.client.log_lines import split_time
from ddp_operator.cluster.errors import ClusterError
from ddp_wire.inspections import Answer, Question, answer_in

WAIT_SECONDS = 15.0
"""Maximum seconds to wait for the answers of all ranks."""
_POLL_SECONDS = 0.5
_RECENT_SECONDS = 60
"""Age of the oldest line that can be an answer, by the clock of its node."""

OpenLog = Callable[[str, int], Iterable[bytes]]
"""Function that reads the last seconds of the log of a pod."""


class Inspector:
    """Questions to the ranks of one job."""

    def __init__(
        self, annotate: Callable[[str | None], object], open_log: OpenLog, pods: Sequence[str]
    ) -> None:
        """Create an inspector.

        Args:
            annotate: Function that sets the annotation of the job, or removes it.
            open_log: Function that reads the newest lines of a pod.
            pods: Names of the pods of the job.
        """
        self._annotate, self._open_log, self._pods = annotate, open_log, pods

    def stacks(self, ranks: int, ranks_per_node: int) -> list[Answer]:
        """Return the answers of all ranks, or of those that answered in time.

        Raises:
            ClusterError: The job cannot be changed.
        """
        question = Question(_new_id())

        def ended(answers: Iterable[Answer]) -> int:
            return sum(one.rank is not None and one.text is None for one in answers)

        return self._ask(
            question,
            of_pod=lambda found: ended(found) >= ranks_per_node,
            of_job=lambda found: ended(found) >= ranks,
        )

    def profile(self, steps: int) -> str:
        """Request a trace from rank 0. Return the sentence of its agent.

        Raises:
            RequestError: No agent answered, or it refused.
            ClusterError: The job cannot be changed.
        """
        answers = self._ask(Question(_new_id(), steps), of_pod=bool, of_job=bool)
        if not answers:
            raise RequestError(f"no agent has answered within {WAIT_SECONDS:.0f} s")
        text = answers[0].text or ""
        if text.startswith("refused: "):
            raise RequestError(text.removeprefix("refused: "))
        return text

    def _ask(
        self,
        question: Question,
        *,
        of_pod: Callable[[list[Answer]], bool],
        of_job: Callable[[list[Answer]], bool],
    ) -> list[Answer]:
        """Ask, and read the logs until the answers of the job are complete.

        Args:
            question: The question.
            of_pod: Function that returns whether the answers of one pod are complete.
            of_job: The same for the answers of all pods.
        """
        found: dict[str, list[Answer]] = {pod: [] for pod in self._pods}
        end = time.monotonic() + WAIT_SECONDS
        self._annotate(question.to_text())
        try:
            while True:
                for pod in self._pods:
                    if not of_pod(found[pod]):
                        found[pod] = self._answers(pod, question.id)
                answers = [one for some in found.values() for one in some]
                if of_job(answers) or time.monotonic() > end:
                    return answers
                time.sleep(_POLL_SECONDS)
        finally:
            with contextlib.suppress(ClusterError):
                self._annotate(None)

    def _answers(self, pod: str, id_: str) -> list[Answer]:
        lines: list[bytes] = []
        # The pod is gone or starts, or the connection broke: the next request may return more.
        with contextlib.suppress(ClusterError):
            lines.extend(self._open_log(pod, _RECENT_SECONDS))
        texts = (split_time(raw)[1].decode("utf-8", "replace").rstrip("\r\n") for raw in lines)
        return [one for one in map(answer_in, texts) if one is not None and one.id == id_]


def _new_id() -> str:
    return secrets.token_hex(4)
