"""The errors that are answers to a user rather than defects of the program."""


class InputError(ValueError):
    """What was asked for cannot be done, however often it is tried.

    Its text is one sentence for the person who asked. The command prints that sentence once and
    ends every rank with `ExitCode.BAD_INPUT`. A task's `build` may raise it too, for example when a
    data folder is empty.
    """
