"""`ddpjob list`."""

from datetime import UTC, datetime

import click

from ddp_operator.api.job import InvalidJobError, parse_job
from ddp_operator.cli.errors import one_sentence
from ddp_operator.cli.options import Place, output_option, place_options
from ddp_operator.cli.output import print_notes, print_objects, print_table
from ddp_operator.report.rows import HEAD, WIDE_HEAD, build_rows
from ddp_operator.report.story import STYLES


@click.command("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@output_option("wide")
@place_options
@one_sentence
def command(*, all_namespaces: bool, output: str | None, place: Place) -> None:
    """List jobs with state, progress and age."""
    client = place.client()
    found = client.list(everywhere=all_namespaces)
    if output in {"json", "yaml", "name"}:
        print_objects(found, output)
        return
    jobs, unread = [], []
    for one in found:
        try:
            jobs.append(parse_job(one))
        except InvalidJobError as error:
            unread.append(f"{one['metadata']['name']} cannot be read: {error}")
    print_notes(unread)
    if not jobs:
        where = "in any namespace" if all_namespaces else f"in the {client.backend.place}"
        click.echo(f"There is no job {where}.", err=True)
        return
    head = WIDE_HEAD if output == "wide" else HEAD
    rows = build_rows(jobs, datetime.now(UTC))
    cells = [row.cells[: len(head)] for row in rows]
    if all_namespaces:
        head = ("NAMESPACE", *head)
        cells = [(row.namespace, *row.cells[: len(head) - 1]) for row in rows]
    styles = [STYLES.get(row.state, "") for row in rows]
    print_table(head, cells, styles, head.index("STATUS"))
