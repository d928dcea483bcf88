"""Build the documentation page about all exit codes from the modules that define them."""

from types import ModuleType

from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.reconcile import terminations
from ddp_trainer import stop
from ddp_wire.exit_codes import ExitCode
from tools.reference.attribute_docs import attribute_docs
from tools.reference.markdown import code, page, table

_TEXT = """\
# Exit codes

This page is generated from the code that defines them. The agent reports the exit code of a rank to the operator. The operator decides
whether the job starts another attempt, and which budget that attempt uses ([recovery](../use/recovery.md))."""  # noqa: E501
_FURTHER = """\
## Further codes

A program that a signal ends has the code 128 plus its number."""
_PROGRAMS = """\
## Programs

| program | exit codes |
| --- | --- |
| ranks of the bundled loop, `ddp-trainer` | those of the first table, and 130. [Commands](cli.md) that compare something end with 1 if it differs |
| ranks of a `command` | any: the program's own. The codes of the first table have their meaning here, too |
| agent, the entrypoint of a worker container | the code of the rank that failed first, 85 after a stop on request, 2 for a command that cannot start, 1 for an invalid variable |
| `ddpjob` | those of [the table below](#codes-of-ddpjob) |
| `ddp-operator` | 0 after SIGTERM, 1 for an invalid setting, after the loss of its Lease and after an error |
| `torchrun` without the agent | 1, for any exit code of the ranks |"""  # noqa: E501
_DDPJOB = "## Codes of ddpjob"
_HEAD = ("exit code", "name", "meaning")


def build_exit_codes_page() -> str:
    """Return the page as Markdown."""
    docs = attribute_docs(ExitCode)
    codes = [(str(one.value), code(one.name), docs[one.name]) for one in ExitCode]
    further = [
        _constant(stop, "INTERRUPTED"),
        _constant(terminations, "_KILLED"),
        _constant(terminations, "_UNKNOWN"),
    ]
    return page(
        _TEXT,
        "## Codes that the operator distinguishes",
        table(_HEAD, codes),
        _FURTHER,
        table(("exit code", "meaning"), further),
        _PROGRAMS,
        _DDPJOB,
        table(_HEAD, [_command_code(one) for one in CommandCode]),
    )


def _command_code(one: CommandCode) -> tuple[str, str, str]:
    return str(one.value), code(one.name), attribute_docs(CommandCode)[one.name]


def _constant(module: ModuleType, name: str) -> tuple[str, str]:
    """Return value and meaning of an exit code that is a constant of a module."""
    return str(int(vars(module)[name])), attribute_docs(module)[name]
