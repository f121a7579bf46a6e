"""Options and arguments that several commands have, and the store that they choose."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from radt.errors import RunNotFoundError, UsageError
from radt.experiment.files import call
from radt.home import Home
from radt.render.formats import ReportFormat
from radt.render.json_text import json_text
from radt.setting_values import NONE
from radt.settings import HOME, STORE_URI, Setting

if TYPE_CHECKING:
    from radt.render.model import Document
    from radt.store.backend import StoreAddress
    from radt.store.locate import Places

F = TypeVar("F", bound=Callable[..., Any])
#: Matches the end of an experiment file's name within ``study.csv/three@gpu-01``.
_FILE_END = re.compile(r"(?<=\.csv|\.yml)(?=$|[/@])|(?<=\.yaml)(?=$|[/@])", re.IGNORECASE)


def setting_option(setting: Setting[Any], *names: str) -> Callable[[F], F]:
    """Return the option of a setting: a text that `radt.settings` reads, None if it is not given.

    A switch gets ``--name/--no-name`` unless `names` say otherwise; `names` may add ``-q``.
    """
    option = f"--{setting.name}"
    variable = setting.name.replace("-", "_")
    if setting.kind.metavar:
        default = _default(setting)
        text = f"{setting.help}  [default: {default}]" if default else setting.help
        return click.option(
            *names, option, variable, metavar=setting.kind.metavar, default=None, help=text
        )
    full = [name for name in names if name.startswith("--")]
    return click.option(
        *names,
        *(() if full else (f"{option}/--no-{setting.name}",)),
        variable,
        default=None,
        help=setting.help,
        callback=lambda _ctx, _param, value: None if value is None else str(value),
    )


#: Passes ``as_json`` to the command.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(name: str, document: Mapping[str, Any], version: int = 1) -> None:
    """Print a document of ``--json`` (`radt.render.json_text`)."""
    click.echo(json_text(name, document, version), nl=False)


_DOCUMENT_FORMATS = (ReportFormat.TABLE, ReportFormat.MARKDOWN, ReportFormat.JSON)
format_option = click.option(
    "--format",
    "kind",
    type=click.Choice([kind.value for kind in _DOCUMENT_FORMATS]),
    default=ReportFormat.TABLE.value,
    show_default=True,
    help="Format of the output.",
)


def print_as(kind: str, document: Document, as_text: Callable[[], str]) -> None:
    """Print a document; `as_text` returns it in formats other than table and Markdown."""
    from rich.console import Console

    from radt.render.markup import as_markdown
    from radt.render.terminal import print_document

    if kind == ReportFormat.TABLE:
        print_document(Console(highlight=False), document)
    else:
        is_markdown = kind == ReportFormat.MARKDOWN
        click.echo(as_markdown(document) if is_markdown else as_text(), nl=False)


def _default(setting: Setting[Any]) -> str:
    if setting.default_text:
        return setting.default_text
    text = setting.shown(setting.default)
    return "" if text == NONE else text


def exclusive_store_options(command: F) -> F:
    """Add `store_options` of which only one may be given, so that no other store is changed."""

    @functools.wraps(command)
    def with_one(*args: Any, **options: Any) -> Any:
        given = click.get_current_context().params
        if given["home"] and given["store_uri"]:
            raise UsageError("Expected --home or --store-uri, got both", "Remove one of them")
        return command(*args, **options)

    return store_options(with_one, default="")  # type: ignore[return-value]


_USUAL_STORES = f"  [default: the usual one, then ${STORE_URI.variables[0]}]"


def store_options(command: F, *, default: str = _USUAL_STORES) -> F:
    """Add ``--home`` and ``--store-uri``; the command gets ``places``, the stores to use."""

    @click.option(
        "--home",
        metavar=HOME.kind.metavar,
        default=None,
        help=f"Use only the store of this data folder.{default}",
    )
    @click.option(
        f"--{STORE_URI.name}",
        metavar=STORE_URI.kind.metavar,
        default=None,
        help="Use only this Postgres store.",
    )
    @functools.wraps(command)
    def with_places(*args: Any, home: str | None, store_uri: str | None, **options: Any) -> Any:
        from radt.store.locate import Places

        return command(*args, places=Places.of(home, store_uri), **options)

    return with_places  # type: ignore[return-value]


def experiment_of(text: str, places: Places) -> str:
    """Return the user's text with an experiment file replaced by the experiment's name.

    The text may be ``study``, ``study.csv``, or have more behind it: ``study.csv/three@gpu-01``.

    Raises:
        ExperimentError: The file cannot be read.
        UsageError: It holds several experiments, or was never run.
    """
    ends = [match.start() for match in _FILE_END.finditer(text)]
    end = next((end for end in ends if Path(text[:end]).is_file()), None)
    if end is None:
        return text
    from radt.experiment.files import table_path
    from radt.experiment.source import experiment_names
    from radt.store.locate import Readers

    file = text[:end]
    table = table_path(file)
    names = experiment_names(table) if table.is_file() else [table.stem]
    if len(names) > 1:
        raise UsageError(
            f"Expected one experiment in {file}, got {len(names)}: {', '.join(names)}",
            f"Use a name: {names[0]}{text[end:]}",
        )
    name = names[0] if names else table.stem
    with Readers(places) as readers:
        if not any(reader.runs(experiment=name) for reader in readers.nearest_first()):
            raise UsageError(
                f"{file} was never run: experiment {name!r} has no runs in {places}",
                f"Run `{call(Path(file))}`, or choose another store with --home or --store-uri",
            )
    return name + text[end:]


def unknown_experiment(name: str, places: Places, wanted: str) -> UsageError:
    """Return the error for an experiment that has no runs of the kind wanted."""
    from radt.store.locate import Readers

    with Readers(places) as readers:
        known = dict.fromkeys(
            entry.name for reader in readers.nearest_first() for entry in reader.experiments()
        )
        with suppress(RunNotFoundError):
            _, run = readers.find_run(name)
            return UsageError(
                f"Expected an experiment, got {name!r}, a run of {run.experiment}",
                f"Name the experiment, {run.experiment}",
            )
    return UsageError(
        f"Expected {wanted} of experiment {name!r} in {places}, got none",
        f"Experiments there: {', '.join(known) or 'none'}",
    )


def data_folder(store: StoreAddress) -> Home | None:
    """Return the data folder that a store is in; None for Postgres."""
    return None if store.path is None else Home(store.path.parent)
