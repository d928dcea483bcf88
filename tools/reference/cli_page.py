"""Build the documentation page about all commands of `ddpjob` and `ddp-trainer`."""

import argparse
import inspect
from collections.abc import Iterator
from importlib import import_module

import click

from ddp_operator.cli.main import main as ddpjob
from ddp_trainer.commands.main import COMMANDS
from tools.reference.markdown import code, page, table

_TEXT = """\
# Commands

This page is generated from the parsers of the programs. `--help` after a program or a command prints the same text. The image of the
operator runs `ddp-operator`, and the image of the trainer runs the agent: both have no options, and are configured by
[environment variables](environment.md). [Exit codes](exit-codes.md) lists how the programs end."""  # noqa: E501
_SETTINGS = """\
All commands but `convert`, `inspect` and `profile` also take [settings](settings.md) as `--section.key=value`."""  # noqa: E501
_HEAD = ("argument or option", "meaning")


def build_cli_page() -> str:
    """Return the page as Markdown."""
    return page(_TEXT, *_ddpjob(), *_ddp_trainer())


def _ddpjob() -> Iterator[str]:
    # click remembers the help option of the first context of each command.
    context = click.Context(ddpjob, info_name="ddpjob", **ddpjob.context_settings)
    yield "## ddpjob"
    yield ddpjob.help or ""
    for name in ddpjob.list_commands(context):
        yield from _click_command(name, ddpjob.get_command(context, name), context)


def _click_command(
    name: str, command: click.Command | None, parent: click.Context
) -> Iterator[str]:
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"### {context.command_path}"
    yield code(" ".join([context.command_path, *command.collect_usage_pieces(context)]))
    yield inspect.cleandoc(command.help or "")
    options = [one for one in command.params if isinstance(one, click.Option)]
    if options:
        yield table(_HEAD, [_click_row(one, context) for one in options])
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _click_command(inner, command.get_command(context, inner), context)


def _click_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    name, text = option.get_help_record(context) or ("", "")
    return code(name), text


def _ddp_trainer() -> Iterator[str]:
    parser = argparse.ArgumentParser(prog="ddp-trainer")
    commands = parser.add_subparsers()
    for name in COMMANDS:
        import_module(f"ddp_trainer.commands.{name}").add_to(commands)
    yield "## ddp-trainer"
    yield "`ddp-trainer COMMAND` or `python -m ddp_trainer COMMAND`."
    yield table(("command", "what it does"), [(code(k), v) for k, v in COMMANDS.items()])
    yield _SETTINGS
    for name, command in commands.choices.items():
        yield f"### ddp-trainer {name}"
        yield command.description or ""
        actions = [one for one in command._actions if one.dest != "help"]  # noqa: SLF001
        yield table(_HEAD, [(code(_spelling(one)), _help(one)) for one in actions])


def _spelling(action: argparse.Action) -> str:
    """Return the spelling of an argument or option: `PATH` or `--config JSON`."""
    value = "" if action.nargs == 0 else _value(action)
    spelled = " ".join([", ".join(action.option_strings), value]).strip()
    return spelled if action.option_strings or action.nargs != "?" else f"[{spelled}]"


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _help(action: argparse.Action) -> str:
    return (action.help or "") % vars(action) + (" (required)" if _is_required(action) else "")


def _is_required(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.required
