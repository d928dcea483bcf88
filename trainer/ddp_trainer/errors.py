"""Errors that the command reports to the user as one sentence, without a traceback."""

from ddp_wire.exit_codes import ExitCode


class ReportedError(Exception):
    """Error that ends a rank. The command prints its sentence without a traceback."""

    code = ExitCode.FAILED
    """Exit code of the rank that raises the error."""
    silent = False
    """Whether another rank prints the sentence, because this rank is not the cause."""

    def __init__(self, sentence: str, *, rank_specific: bool = False) -> None:
        """Create the error.

        Args:
            sentence: Error message for the user.
            rank_specific: Whether only this rank knows the error and must print it. Otherwise all
                ranks raise the same error and only rank 0 prints it.
        """
        super().__init__(sentence)
        self.rank_specific = rank_specific


class InputError(ReportedError, ValueError):
    """Error in the user's input, which no retry can fix.

    The command prints the sentence once, and every rank exits with `ExitCode.BAD_INPUT`. A task's
    `build` may raise it too, for example when a data folder is empty.
    """

    code = ExitCode.BAD_INPUT


class FencedError(ReportedError):
    """Error for a write to a run's directory after a newer attempt has opened the directory."""


class VolumeError(ReportedError):
    """Failure of the volume with the checkpoints, which may be over in a later attempt.

    Every rank exits with `ExitCode.VOLUME_FAILED`, so that the operator counts it as an
    infrastructure failure.
    """

    code = ExitCode.VOLUME_FAILED


class ReplicasDifferError(ReportedError):
    """Error for weights that must be equal on all ranks, but differ.

    If most ranks agree, the other ranks print the sentence, so that the operator blames one of
    them. Otherwise rank 0 prints it, and no rank is blamed.
    """

    def __init__(self, sentence: str, code: ExitCode, *, blamed: bool, silent: bool) -> None:
        """Create the error.

        Args:
            sentence: Error message for the user.
            code: Exit code of this rank.
            blamed: Whether this rank differs from the majority, and prints the sentence.
            silent: Whether this rank belongs to the majority, and does not print the sentence.
        """
        super().__init__(sentence, rank_specific=blamed)
        self.code = code
        self.silent = silent


def reported_error(code: int, sentence: str) -> ReportedError:
    """Return another rank's error, so that this rank can raise it too."""
    kinds: tuple[type[ReportedError], ...] = (InputError, VolumeError)
    return next((kind for kind in kinds if kind.code == code), ReportedError)(sentence)
