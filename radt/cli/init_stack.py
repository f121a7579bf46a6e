"""``radt init-stack``: what ``docker compose up`` needs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init-stack")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def command(folder: Path) -> None:
    """Write compose.yaml, its files and .env, with passwords made up, into FOLDER.

    Nothing that is there is overwritten. Docker or Podman then runs Postgres, an S3 server, MLflow
    and the dashboard; docs/storage.md tells how. Without containers: radt stack up.
    """
    from radt.stack.init import ENV_FILE, init_stack

    done = init_stack(folder)
    for path in done.written:
        click.echo(f"written  {path}")
    for path in done.kept:
        click.echo(f"kept     {path}")
    where = "" if folder == Path() else f"cd {folder} && "
    click.echo(
        f"\nThe passwords are in {folder / ENV_FILE}, which only you may read. Then:\n\n"
        f"  {where}docker compose up --detach --build"
    )
