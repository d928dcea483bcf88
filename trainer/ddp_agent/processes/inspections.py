"""Answer the questions of users about the running ranks, see `ddp_wire.inspections`.

The operator's request arrives in a thread of the HTTP server. The loop answers it in the log: it
asks the ranks for their stacks, and prints what they have written as soon as they write no more. A
request for a trace becomes a file in the run's directory, which global rank 0 polls. No call of the
loop blocks.

Process: agent (loop; threads of the HTTP server accept requests).
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddp_agent.clock import Clock
from ddp_agent.config import AgentConfig
from ddp_agent.processes.launch import Launch
from ddp_agent.processes.rank_processes import RankProcesses, read_processes
from ddp_wire.contract import PROFILE_REQUEST, PROFILES
from ddp_wire.files import replace_file
from ddp_wire.inspections import Answer, Question, inspection_from_text
from ddp_wire.messages import InspectionRequest
from ddp_wire.stacks import answers, new_stacks, request_stacks, stacks_size

_log = logging.getLogger("ddp_agent")

ANSWER_SECONDS = 2.0
"""Maximum seconds to wait for the stacks of the ranks."""
STALE_SECONDS = 20.0
"""Seconds after which a question is dropped if no rank has run. The user no longer waits then."""
_LONGEST_LINE = 1000
_NO_ANSWER = f"no answer within {ANSWER_SECONDS:.0f} s"
_NO_HANDLER = (
    "no answer: a command shows its stacks if it is a Python file or module that the standby starts"
)
_REMEMBERED = 16


@dataclass
class _Reading:
    """Stacks that the ranks of this node are writing."""

    id: str
    folder: Path
    first_rank: int
    ends: float
    """Time of the monotonic clock at which the answer is overdue, in seconds."""
    begins: dict[int, int]
    """Size of the file of each local rank before the question, in bytes."""
    sizes: dict[int, int]
    """Size at the last look."""


class Questions:
    """Questions of users to the ranks of one node."""

    def __init__(
        self, config: AgentConfig, clock: Clock, say: Callable[[str], None] | None = None
    ) -> None:
        """Create the store of one agent.

        Args:
            config: Configuration of the agent.
            clock: Source of time.
            say: Function that writes a line of an answer into the log.
        """
        self._config, self._clock = config, clock
        self._say = say or (lambda text: _log.info("%s", text))
        self._asked: tuple[float, Question] | None = None
        self._known: list[str] = []
        """Ids of the newest questions. An operator that restarts repeats the last one."""
        self._reading: _Reading | None = None

    def accept(self, request: InspectionRequest) -> bool:
        """Take a question. Return whether it is one for this job. Safe to call from any thread."""
        question = inspection_from_text(request.question)
        if question is None or request.job_uid != self._config.job_uid:
            return False
        if question.id not in self._known:
            self._known = [*self._known[1 - _REMEMBERED :], question.id]
            self._asked = (self._clock.monotonic(), question)
        return True

    def look(self, launch: Launch) -> None:
        """Begin or continue to answer. Call this method while the ranks of an attempt run."""
        now = self._clock.monotonic()
        if self._reading is not None:
            self._continue(self._reading, now)
            return
        asked, self._asked = self._asked, None
        if asked is None or now > asked[0] + STALE_SECONDS:
            return
        ranks = read_processes(launch.heartbeats_dir)
        if ranks is None:
            self._asked = asked  # The ranks start.
        elif asked[1].steps is None:
            self._ask_for_stacks(asked[1].id, ranks, launch.heartbeats_dir, now)
        elif ranks.first_rank == 0:
            self._answer(asked[1].id, self._request_profile(asked[1].steps))

    def _ask_for_stacks(self, id_: str, ranks: RankProcesses, folder: Path, now: float) -> None:
        sizes = {local: stacks_size(folder, local) for local in sorted(ranks.running)}
        ends = now + ANSWER_SECONDS
        self._reading = _Reading(id_, folder, ranks.first_rank, ends, sizes, dict(sizes))
        for local, process in ranks.running.items():
            request_stacks(folder, local, process)

    def _continue(self, reading: _Reading, now: float) -> None:
        """Print the stacks of the ranks that write no more."""
        for local, begin in list(reading.begins.items()):
            size = stacks_size(reading.folder, local)
            complete = begin < size == reading.sizes[local] or not answers(reading.folder, local)
            reading.sizes[local] = size
            if not complete and now < reading.ends:
                continue
            del reading.begins[local]
            rank = reading.first_rank + local
            lines = new_stacks(reading.folder, local, begin).splitlines()
            for line in lines or [_NO_ANSWER if answers(reading.folder, local) else _NO_HANDLER]:
                self._answer(reading.id, line[:_LONGEST_LINE], rank)
            self._say(Answer(reading.id, rank).to_text())
        if not reading.begins:
            self._reading = None

    def _request_profile(self, steps: int) -> str:
        """Write the request for a trace. Return a sentence for the user."""
        directory = self._config.checkpoint_dir
        if directory is None:
            return "refused: a trace needs spec.checkpoint, whose volume takes it"
        if self._config.task is None:
            return "refused: only the bundled loop writes traces, and the job has a command"
        try:
            replace_file(directory / PROFILE_REQUEST, json.dumps({"from": 0, "steps": steps}))
        except OSError as error:
            return f"refused: {directory / PROFILE_REQUEST}: {error.strerror or error}"
        return f"rank 0 writes the trace of {steps} updates to {directory / PROFILES}"

    def _answer(self, id_: str, text: str, rank: int | None = None) -> None:
        self._say(Answer(id_, rank, text).to_text())
