"""Inspections: questions of a user to the ranks of a running job.

A user asks by an annotation of the DDPJob. The operator passes the question on to the agents of the
members, and the agents answer in their logs, which the user may read:

    stacks:5f3a91c2          the Python stacks of all ranks, now; the ranks go on
    profile:5f3a91c2:10      a trace of rank 0's next 10 updates, in the run's directory

The random id connects an answer with its question. Neither question nor answer is a part of a
decision, so a lost one costs the user only a repetition.
"""

import json
import re
from dataclasses import dataclass

_TEXT = re.compile(r"(?:stacks:([0-9a-z]{1,16})|profile:([0-9a-z]{1,16}):([1-9][0-9]{0,2}))")
_ANSWER = re.compile(r"inspection ([0-9a-z]{1,16})(?: rank (\d{1,9}))?(?:: (.*)| (ends))")
_AGENT = "ddp-agent: "
MOST_PROFILED_STEPS = 100
"""Maximum number of updates in one trace. Viewers cannot open larger trace files."""


@dataclass(frozen=True)
class Question:
    """One question."""

    id: str
    """Random text of 1 to 16 digits and lower-case letters."""
    steps: int | None = None
    """Number of updates of a trace, or None for stacks."""

    def to_text(self) -> str:
        """Return the value of the annotation."""
        if self.steps is None:
            return f"stacks:{self.id}"
        return f"profile:{self.id}:{self.steps}"


@dataclass(frozen=True)
class Answer:
    """One line of an answer."""

    id: str
    rank: int | None = None
    """Global rank, or None for a line of an agent."""
    text: str | None = None
    """The line, or None after the last line of a rank."""

    def to_text(self) -> str:
        """Return the message for the agent's log."""
        who = f"inspection {self.id}" + ("" if self.rank is None else f" rank {self.rank}")
        return f"{who} ends" if self.text is None else f"{who}: {self.text}"


def inspection_from_text(text: str) -> Question | None:
    """Return the question in an annotation, or None if the text is no question."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return Question(found[1])
    steps = int(found[3])
    return Question(found[2], steps) if steps <= MOST_PROFILED_STEPS else None


def answer_in(line: str) -> Answer | None:
    """Return the answer in a line of an agent's log, as text or as JSON, or None."""
    if line.startswith(_AGENT):
        message = line.removeprefix(_AGENT)
    elif line.startswith('{"time": ') and '"message": "inspection ' in line:
        try:
            message = str(json.loads(line)["message"])
        except (ValueError, LookupError, TypeError):
            return None
    else:
        return None
    found = _ANSWER.fullmatch(message)
    if found is None:
        return None
    return Answer(found[1], None if found[2] is None else int(found[2]), found[3])
