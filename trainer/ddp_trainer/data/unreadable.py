"""Report samples that cannot be read to the rank, with the number of the sample.

A worker process returns the failure as a value. If it raised the error, torch would replace the
message by its own, and the rank would not know the sample.
"""

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddp_trainer.data.sampler import MicroBatch


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Failure of the preparation of a micro-batch, as a worker process returns it."""

    sentence: str
    """Message with the sample and the first line of the error."""
    trace: str
    """Traceback in the process that read the sample."""

    @classmethod
    def of(cls, error: Exception, what: str) -> "Unreadable":
        """Return the failure to read an item such as `sample 7`."""
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        sentence = f"{what}: {type(error).__name__}: {first_line}"
        return cls(sentence, "".join(traceback.format_exception(error)))


class UnreadableError(Exception):
    """Error for a sample that could not be read, or samples that could not be collated.

    Its text is one sentence. The traceback of the reader is in a note.
    """

    def __init__(self, sentence: str, trace: str) -> None:
        """Create the error.

        Args:
            sentence: The failed sample, and the first line of the original error.
            trace: The original traceback.
        """
        super().__init__(sentence)
        self.trace = trace
        self.add_note(trace.rstrip())

    def at(self, place: str) -> "UnreadableError":
        """Return the same error with a location before its message."""
        return UnreadableError(f"{place}, {self}", self.trace)


@dataclass(frozen=True, slots=True)
class Readable:
    """Loader that raises the failures of its worker processes in this process."""

    loader: Iterable[MicroBatch | Unreadable]
    place: str = ""
    """Text before the message of a failure, such as the name of the data set."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yield the micro-batches.

        Raises:
            UnreadableError: A micro-batch could not be prepared.
        """
        for micro_batch in self.loader:
            if isinstance(micro_batch, Unreadable):
                raise UnreadableError(self.place + micro_batch.sentence, micro_batch.trace)
            yield micro_batch
