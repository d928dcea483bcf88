"""Samples that cannot be read: the error reaches the rank with the number of the sample.

A worker process returns the failure as a value. If it raised the error, torch would hide the
sentence behind its own, and the rank could not tell which sample it was.
"""

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddp_trainer.data.sampler import MicroBatch


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A micro-batch that could not be prepared."""

    sentence: str
    """The sample, and the first line of the error."""
    trace: str
    """The traceback in the process that read it."""

    @classmethod
    def of(cls, error: Exception, what: str) -> "Unreadable":
        """Return the failure to read `what`, for example `sample 7`."""
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        sentence = f"{what}: {type(error).__name__}: {first_line}"
        return cls(sentence, "".join(traceback.format_exception(error)))


class UnreadableError(Exception):
    """A sample could not be read, or samples could not be collated.

    Its text is one sentence. The traceback of the reader is in a note.
    """

    def __init__(self, sentence: str, trace: str) -> None:
        """Create the error.

        Args:
            sentence: The place, and the first line of the original error.
            trace: The original traceback.
        """
        super().__init__(sentence)
        self.trace = trace
        self.add_note(trace.rstrip())

    def at(self, place: str) -> "UnreadableError":
        """Return the same error with a place before its sentence."""
        return UnreadableError(f"{place}, {self}", self.trace)


@dataclass(frozen=True, slots=True)
class Readable:
    """A loader whose failures are raised in this process."""

    loader: Iterable[MicroBatch | Unreadable]
    place: str = ""
    """Text before the sentence of a failure."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """Iterate over the micro-batches.

        Raises:
            UnreadableError: In place of a micro-batch that could not be prepared.
        """
        for micro_batch in self.loader:
            if isinstance(micro_batch, Unreadable):
                raise UnreadableError(self.place + micro_batch.sentence, micro_batch.trace)
            yield micro_batch
