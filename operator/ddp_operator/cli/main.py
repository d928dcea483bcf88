"""The `ddpjob` command.

A verb is imported only when it runs, so that `--help` is quick.
"""

import io
import sys
from importlib import import_module

import click

VERBS = {
    "checkpoints": ("checkpoints", "List, verify or download the checkpoints of a job."),
    "convert": (
        "convert",
        "Print the DDPJob for a PyTorchJob or TrainJob in FILE, and what it leaves out.",
    ),
    "delete": ("delete", "Delete a job with its pods."),
    "events": ("events", "Show what the operator has reported about a job, oldest first."),
    "init": ("init", "Write a manifest that runs a script, or a task as module:function."),
    "list": ("list_jobs", "List jobs with state, progress and age."),
    "logs": ("logs", "Show the output of all ranks in all attempts, in order."),
    "node": ("node", "Simulate the loss of a node in a local run, or bring the node back."),
    "profile": (
        "profile",
        "Request a trace of the next updates of rank 0, for Perfetto or Chrome.",
    ),
    "report": (
        "report",
        "Write one HTML page about a running or finished run, and print its path.",
    ),
    "resume": ("resume", "Start a suspended job again from its newest checkpoint."),
    "run": ("run", "Run the DDPJob in FILE on this machine, without a cluster."),
    "scale": (
        "scale",
        "Change the number of nodes of a job, which goes on from its newest checkpoint.",
    ),
    "stacks": ("stacks", "Show where all ranks are now, as stacks of Python."),
    "status": (
        "status",
        "Show the story of a job on one screen: attempts, progress, where the time went.",
    ),
    "submit": ("submit", "Check the DDPJob in FILE and create it."),
    "support-bundle": (
        "support_bundle",
        "Collect status, Events, output and reports of a job in one archive, without its secrets.",
    ),
    "suspend": ("suspend", "Save a checkpoint, stop the ranks and free the nodes of a job."),
    "validate": (
        "validate",
        "Check the DDPJob in FILE without a cluster: its fields, rules, and settings of the loop.",
    ),
    "wait": ("wait", "Wait until a job has ended."),
    "watch": (
        "watch",
        "Show the state of a job until it ends: live on a terminal, a line per change elsewhere.",
    ),
    "why": ("why", "Say what is wrong with a job, what to do, and which command helps."),
}
"""Module and description of each verb. A test compares the descriptions with the verbs' own."""
_OTHER_NAMES = {
    "apply": "submit",
    "create": "submit",
    "get": "list",
    "ls": "list",
    "log": "logs",
    "describe": "status",
    "check": "validate",
    "lint": "validate",
    "stop": "suspend",
    "cancel": "delete",
    "rm": "delete",
}
"""Names that users of other programs may try, and the verb that does the same."""


class Verbs(click.Group):
    """Group of verbs that are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        del ctx
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, or None if there is none of that name."""
        del ctx
        if cmd_name not in VERBS:
            return None
        module = import_module(f"ddp_operator.cli.verbs.{VERBS[cmd_name][0]}")
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their descriptions, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(VERBS.items())])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the arguments name. Suggest one for a name of other programs."""
        if args[0] in _OTHER_NAMES:
            sentence = f"No such command '{args[0]}': use ddpjob {_OTHER_NAMES[args[0]]}."
            raise click.UsageError(sentence, ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddp-trainer")
def main() -> None:
    """Run multi-node PyTorch DDP training jobs, on a cluster or on this machine."""
    # Ranks may print characters that the encoding of the terminal lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main(prog_name="ddpjob")
