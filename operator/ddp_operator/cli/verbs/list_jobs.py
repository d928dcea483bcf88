"""`ddpjob list`."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, output_option, place_options
from ddp_operator.cli.output import print_notes, print_objects, print_table
from ddp_operator.client.errors import RequestError
from ddp_operator.report.rows import HEAD, WIDE_HEAD, JobRow, build_rows, deleted_row
from ddp_operator.report.story import STYLES


@click.command("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option(
    "--all",
    "deleted",
    is_flag=True,
    help="Also the newest finished jobs that are deleted. READY shows them as deleted.",
)
@output_option("wide")
@place_options
@one_sentence
def command(*, all_namespaces: bool, deleted: bool, output: str | None, place: Place) -> None:
    """List jobs with state, progress and age."""
    programs = output in {"json", "yaml", "name"}
    if deleted and programs:
        raise RequestError(f"--all: deleted jobs are no objects, so it cannot be with -o {output}")
    client = place.client()
    found = client.list(everywhere=all_namespaces)
    if output is not None and programs:
        print_objects(found, output)
        return
    jobs, unread = [], []
    for one in found:
        try:
            jobs.append(parse_job(one))
        except InvalidJobError as error:
            unread.append(f"{one['metadata']['name']} cannot be read: {error}")
    now = datetime.now(UTC)
    rows = build_rows(jobs, now)
    if deleted:
        present = {one["metadata"].get("uid") for one in found}
        gone = [
            one
            for one in client.finished(everywhere=all_namespaces)
            if one.summary.uid not in present
        ]
        rows += [deleted_row(one.namespace, one.summary, now) for one in gone]
        unread += client.backend.notes()
    print_notes(unread)
    if not rows:
        where = "in any namespace" if all_namespaces else f"in the {client.backend.place}"
        click.echo(f"There is no job {where}.", err=True)
        return
    _print_rows(rows, wide=output == "wide", all_namespaces=all_namespaces)


def _print_rows(rows: Sequence[JobRow], *, wide: bool, all_namespaces: bool) -> None:
    head = WIDE_HEAD if wide else HEAD
    cells = [row.cells[: len(head)] for row in rows]
    if all_namespaces:
        head = ("NAMESPACE", *head)
        cells = [(row.namespace, *row.cells[: len(head) - 1]) for row in rows]
    styles = [STYLES.get(row.state, "") for row in rows]
    print_table(head, cells, styles, head.index("STATUS"))
