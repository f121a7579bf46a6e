"""``radt note``: name, describe, tag, star or archive runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from radt.cli.options import store_options
from radt.delivery.notes import send_notes
from radt.errors import UsageError
from radt.model import SHORT_ID_CHARS
from radt.store.locate import Places, Readers
from radt.store.notes import Edit, RunNotes, edit_notes, read_notes
from radt.store.writer import StoreWriter


@click.command("note")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--name", help="Give the runs this name.")
@click.option("--text", help="Description of the runs, in Markdown; MLflow shows it, too.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a tag; repeatable. KEY= removes it.",
)
@click.option("--star/--no-star", "starred", default=None, help="Mark the runs with a star.")
@click.option("--archive/--no-archive", "archived", default=None, help="Hide the runs in lists.")
@store_options
def command(
    runs: Sequence[str],
    name: str | None,
    text: str | None,
    tags: Sequence[str],
    starred: bool | None,
    archived: bool | None,
    places: Places,
) -> None:
    """Name, describe, tag, star or archive RUNs (ids or their first characters); show the result.

    \b
    radt note 4f2a91 --name baseline --tag reviewed=yes --star
    """
    edit = Edit(name, text, dict(map(_pair, tags)), starred, archived)
    with Readers(places) as readers:
        found = [readers.find_run(run) for run in runs]
        if edit != Edit():
            for reader, record in found:
                with StoreWriter(reader.address) as writer:
                    edit_notes(writer, [record.run_id], edit)
        for reader, record in found:
            _show(record.run_id, read_notes(reader, record.run_id))
        for reader, record in found:
            send_notes(reader.address, [record.run_id])


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"Expected --tag KEY=VALUE, got {text!r}")
    return key, value


def _show(run_id: str, notes: RunNotes) -> None:
    marks = ["★"] * notes.starred + ["archived"] * notes.archived
    click.echo("  ".join([run_id[:SHORT_ID_CHARS], notes.name, *marks]))
    for line in notes.text.splitlines():
        click.echo(f"  {line}")
    for key, value in notes.tags.items():
        click.echo(f"  {key}={value}")
