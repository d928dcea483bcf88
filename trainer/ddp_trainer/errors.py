"""The errors that are answers to a person rather than defects of the program."""

from ddp_wire.contract import ExitCode


class Refusal(Exception):  # noqa: N818 - what it is to the person who reads it
    """Why a rank ends: one sentence, printed without a traceback."""

    code = ExitCode.FAILED
    """What the rank exits with."""

    def __init__(self, sentence: str, *, own: bool = False) -> None:
        """Holds the sentence.

        Args:
            sentence: For the person who asked.
            own: Whether this rank alone knows, and so has to say it itself. Otherwise all ranks
                have the same sentence and rank 0 says it.
        """
        super().__init__(sentence)
        self.own = own


class InputError(Refusal, ValueError):
    """What was asked for cannot be done, however often it is tried.

    Its text is one sentence for the person who asked. The command prints that sentence once and
    ends every rank with `ExitCode.BAD_INPUT`. A task's `build` may raise it too, for example when a
    data folder is empty.
    """

    code = ExitCode.BAD_INPUT


class FencedError(Refusal):
    """A newer attempt has opened the run's directory: this one may no longer change it."""


def refusal(code: int, sentence: str) -> Refusal:
    """The refusal of another rank, to be raised here too."""
    return InputError(sentence) if code == ExitCode.BAD_INPUT else Refusal(sentence)
