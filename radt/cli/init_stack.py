"""``radt init-stack``: what ``docker compose up`` needs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init-stack")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def command(folder: Path) -> None:
    """Write compose.yaml, the files it names and .env with generated passwords into FOLDER.

    Existing files are not overwritten. `docker compose up` then runs Postgres, an S3 server, MLflow
    and the dashboard. The documentation's page "Storage and servers" describes the servers, "Set up
    a team" the set-up without Docker.
    """
    from radt.compose.init import ENV_FILE, init_stack

    result = init_stack(folder)
    for path in result.written:
        click.echo(f"written  {path}")
    for path in result.kept:
        click.echo(f"kept     {path}")
    where = "" if folder == Path() else f"cd {folder} && "
    click.echo(
        f"\nThe passwords are in {folder / ENV_FILE}, which only you may read. Next:\n\n"
        f"  {where}docker compose up --detach --build"
    )
