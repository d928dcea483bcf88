"""Turn the errors of a verb into one sentence and an exit code."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from ddp_operator.cli.exit_codes import CommandCode


def refuse(sentence: str, code: int = CommandCode.BAD_INPUT) -> NoReturn:
    """Print an error message, and exit. It may quote the text of a rank or of another user."""
    # Imported here, because `--help` of a verb needs none of it.
    from ddp_wire.plain_text import plain_text  # noqa: PLC0415

    click.echo(f"ddpjob: {plain_text(sentence)}", err=True)
    sys.exit(code)


def one_sentence(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb whose errors of the user and of the cluster end with one sentence."""

    @functools.wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Imported here, because `--help` of a verb needs none of them.
        from ddp_operator.api.job import InvalidJobError  # noqa: PLC0415
        from ddp_operator.client.errors import (  # noqa: PLC0415
            ClusterError,
            RequestError,
            WaitTimeoutError,
        )

        try:
            return verb(*args, **kwargs)
        except (InvalidJobError, RequestError) as error:
            refuse(str(error))
        except WaitTimeoutError as error:
            refuse(str(error), CommandCode.TIMEOUT)
        except ClusterError as error:
            refuse(str(error), CommandCode.NO_CLUSTER)
        except KeyboardInterrupt:
            sys.exit(CommandCode.INTERRUPTED)

    return call
