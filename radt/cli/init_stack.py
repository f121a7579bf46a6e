"""``radt init-stack``: the files that ``docker compose up`` needs."""

from __future__ import annotations

from pathlib import Path

import click

from radt import __version__


@click.command("init-stack")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--upgrade",
    is_flag=True,
    help="Replace the files of another version, and keep copies of those that differ.",
)
def command(folder: Path, upgrade: bool) -> None:
    """Write compose.yaml, the files it names and .env with generated passwords into FOLDER.

    Existing files are not overwritten, except with --upgrade; .env keeps its lines. `docker compose
    up` then runs Postgres, an S3 server, MLflow and the dashboard. The documentation's page
    "Storage and servers" describes the servers, "Set up a team" the set-up without Docker.
    """
    from radt.compose.init import ENV_FILE, init_stack

    result = init_stack(folder, upgrade=upgrade)
    for word in ("written", "kept", "saved"):
        for path in getattr(result, word):
            click.echo(f"{word:<8} {path}")
    where = "" if folder == Path() else f"cd {folder} && "
    if result.outdated:
        click.echo(
            f"\nThe files are of radt {result.outdated}; this is {__version__}. After a backup, "
            f"upgrade them with:\n\n  radt init-stack --upgrade{where and f' {folder}'}"
        )
    env = folder / ENV_FILE
    click.echo(
        f"\nThe passwords are in {env}, which only you may read. Next:\n\n"
        f"  {where}docker compose up --detach --build\n\n"
        f"Dashboard  {result.dashboard_url}  token: RADT_DASHBOARD_TOKEN in {env}\n"
        f"MLflow     {result.mlflow_url}  user: admin, password: STACK_MLFLOW_ADMIN_PASSWORD"
    )
