"""Compare command lines with the parsers of the project's own programs, without running them.

Each function returns what is wrong with the words after the program, or None.
"""

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

import click

from ddp_operator.api.job import InvalidJobError
from ddp_operator.cli.main import main as ddpjob
from ddp_operator.client.manifest import read_job_file
from ddp_trainer.commands.main import COMMANDS, _parser
from ddp_trainer.config.settings import Document, merge, read_document, read_overrides, resolve
from ddp_trainer.errors import InputError
from tests.docs.pages import ROOT

SAMPLE = ROOT / "manifests" / "samples" / "digits.yaml"
"""Job for `--set` if the manifest of a command is not in the repository."""
_WITHOUT_SETTINGS = ("convert", "inspect", "profile")
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|.*…")
"""Words that stand for any value."""


def ddpjob_problem(words: Sequence[str], *, whole: bool = True) -> str | None:
    """Return why `ddpjob` refuses its arguments.

    Args:
        words: Arguments of `ddpjob`.
        whole: Whether all required arguments must be there.
    """
    try:
        command, context, found, extra = _verb(list(words))
        if extra:
            return f"unexpected argument {extra[0]}"
        for parameter in command.params:
            _check_value(context, parameter, found.get(str(parameter.name)), whole=whole)
        if found.get("settings"):
            _check_settings(str(found.get("file")), found["settings"])
    except click.BadOptionUsage as error:
        return error.format_message() if whole or isinstance(error, click.NoSuchOption) else None
    except click.UsageError as error:
        return error.format_message()
    except InvalidJobError as error:
        return str(error)
    return None


def _verb(words: list[str]) -> tuple[click.Command, click.Context, dict[str, object], list[str]]:
    """Return the verb that the words name, its context, its unconverted values and the rest."""
    command: click.Command = ddpjob
    context = click.Context(command, info_name="ddpjob", **command.context_settings)
    while True:
        found, rest, _ = command.make_parser(context).parse_args(words)
        if not isinstance(command, click.Group) or not rest:
            return command, context, dict(found), list(rest)
        name, verb, words = command.resolve_command(context, list(rest))
        assert verb is not None
        command, context = verb, click.Context(verb, context, info_name=name)


def _check_value(
    context: click.Context, parameter: click.Parameter, value: object, *, whole: bool
) -> None:
    given = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
    if not given and whole and isinstance(parameter, click.Argument) and parameter.required:
        raise click.MissingParameter(ctx=context, param=parameter)
    if not isinstance(parameter.type, click.Path):
        for one in given:
            if not PLACEHOLDER.fullmatch(one):
                parameter.type.convert(one, parameter, context)


def _check_settings(file: str, settings: object) -> None:
    assert isinstance(settings, list)
    named = ROOT / file
    given = [one for one in settings if "=" in one and not PLACEHOLDER.fullmatch(one)]
    read_job_file(named if named.is_file() else SAMPLE).checked(given)


def ddp_trainer_problem(words: Sequence[str], *, whole: bool = True) -> str | None:
    """Return why `ddp-trainer` refuses its arguments, as `ddpjob_problem` does."""
    if "--help" in words:
        return None
    try:
        if words and words[0] not in COMMANDS:
            if PLACEHOLDER.fullmatch(words[0]):
                return None
            return f"no command {words[0]}"
        options, rest = _parser(words).parse_known_args(words)
        rest = [word for word in rest if not PLACEHOLDER.fullmatch(word)]
        if options.command in _WITHOUT_SETTINGS:
            return f"unknown argument {rest[0]}" if rest else None
        resolve(_settings(getattr(options, "config", None), rest))
    except InputError as error:
        missing = "arguments are required" in str(error)
        return None if missing and not whole else str(error)
    return None


def _settings(config: str | None, rest: Sequence[str]) -> Document:
    """Return the settings of a command line. A file of settings that does not exist has none."""
    document: Document = {}
    if config is not None and (config.startswith("{") or Path(config).exists()):
        document = read_document(config)
    return merge(document, read_overrides(rest))


def make_problem(words: Sequence[str]) -> str | None:
    """Return the target or the variable that the Makefile lacks."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, given, _ = word.partition("=")
        pattern = rf"\$\({name}\)" if given else rf"^{re.escape(name)}:"
        if not PLACEHOLDER.fullmatch(word) and not re.search(pattern, makefile, re.MULTILINE):
            return f"the Makefile has no {'variable' if given else 'target'} {name}"
    return None


def torchrun_problem(words: Sequence[str]) -> str | None:
    """Return why torchrun refuses its arguments."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 - slow to import

    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            get_args_parser().parse_args(list(words))
    except SystemExit:
        return shown.getvalue().strip().rpartition("\n")[2]
    return None


def pip_problem(words: Sequence[str]) -> str | None:
    """Return the extra that the package lacks, or that the package is taken from an index."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for word in words:
        if re.match(r"ddp[-_]trainer(\[.*\])?$", word):
            return "no package index has ddp-trainer"
        for extra in re.findall(r"\w+", word[2:]) if word.startswith(".[") else []:
            if not extra.isupper() and not re.search(rf"^{extra} = \[", project, re.MULTILINE):
                return f"the package has no extra {extra}"
    return None
