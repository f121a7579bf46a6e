"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

from radt.home import HOME_VARIABLE

#: Gives the command's ``home``, None for the usual folder (`radt.home.Home.resolve`).
home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Data folder.  [default: ${HOME_VARIABLE}, else ./radt-data]",
)
