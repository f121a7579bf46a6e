"""Runs that an MLflow server has and the store has not yet: loaded when they are opened.

Of runs that radt recorded the archive is loaded; of others MLflow's metrics are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.errors import RadtError
from radt.frontend.catalog import RunEntry
from radt.frontend.chosen import choose
from radt.frontend.dashing import attributes
from radt.frontend.loading import Load, LoadState
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.records import RunRecord
from radt.units import plural, size

if TYPE_CHECKING:
    from radt.frontend.foreign.fetching import Fetch
    from radt.frontend.server import Server

#: Runs of one trouble that are named.
_NAMED = 3
_SOON_MS = 400
_BUSY = (LoadState.WAITING, LoadState.LOADING)


def token(source: Source) -> str:
    """Changes with the news of loading."""
    server = source.server
    return "" if server is None else f"{server.loading.token} {server.beside.fetching.token}"


def is_busy(source: Source) -> bool:
    """Whether something is being loaded."""
    server = source.server
    return server is not None and (server.loading.is_busy or server.beside.fetching.is_busy)


def running(source: Source) -> Sequence[RunRecord]:
    """Runs of the store that run.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember("running", lambda reader: reader.runs(status=RunStatus.RUNNING))


def refresh(source: Source) -> None:
    """Ask for what has come since of runs that were loaded before they had ended."""
    server = source.server
    if server is None:
        return
    server.beside.fetching.look()
    try:
        server.open(filter(None, map(server.may_have_grown, running(source))))
    except RadtError:  # the router says what is wrong
        return


def register(app: Dash, source: Source) -> None:
    """Callbacks; none where there is no server."""
    server = source.server
    if server is None:
        return

    @app.callback(
        Output("loads", "children"),
        Output("loads", "hidden"),
        Output("pulse", "interval", allow_duplicate=True),
        Input("view", "data"),
        Input("revision", "data"),
        Input("loads-token", "data"),
        State("loads", "hidden"),
        prevent_initial_call="initial_duplicate",
    )
    def follow(
        view: dict[str, Any] | None, revision: str | None, _token: str, hidden: bool
    ) -> tuple[Any, ...]:
        if revision is None or view is None:
            raise PreventUpdate
        try:
            chosen = choose(source, View.from_json(view)).runs
        except RadtError:  # the router says what is wrong
            raise PreventUpdate from None
        remote = [run for run in chosen.values() if run.remote is not None]
        server.open(
            run.remote
            for run in remote
            if run.remote is not None and run.record.status is not RunStatus.SCHEDULED
        )
        server.beside.open(chosen)
        lines = panel(server, tuple(chosen.values()))
        if not lines and hidden:
            raise PreventUpdate
        # What has just begun is soon done; the next pulse sets another pace.
        begins = bool(lines) and hidden and is_busy(source)
        return lines or no_update, not lines, _SOON_MS if begins else no_update


def panel(server: Server, chosen: Sequence[RunEntry]) -> list[Component]:
    """How far the chosen runs are, and what went wrong; nothing when all are here."""
    loads = server.loads(run.run_id for run in chosen)
    fetches = server.beside.fetches(run.run_id for run in chosen)
    on_the_way = [
        load
        for run in chosen
        if run.remote is not None
        and (load := loads.get(run.run_id)) is not None
        and load.state is not LoadState.FAILED
    ]
    lines: list[Component] = []
    if on_the_way:
        here = sum(run.remote is None and run.run_id in loads for run in chosen)
        lines.append(_loading(server, on_the_way, here))
    if any(fetch.state in _BUSY and not fetch.again for fetch in fetches.values()):
        lines.append(_reading(server, tuple(fetches.values())))
    failed: list[tuple[RunEntry, Load | Fetch]] = [
        (run, loads[run.run_id]) for run in chosen if run.remote and run.run_id in loads
    ]
    failed += [(run, fetches[run.run_id]) for run in chosen if run.run_id in fetches]
    for (message, remedy), names in _troubles(failed).items():
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        what = f"{', '.join(names[:_NAMED])}{more}: {message}."
        lines.append(
            html.P([html.Strong(what), f" {remedy}." if remedy else ""], className="loads-trouble")
        )
    return lines


def _loading(server: Server, loads: Sequence[Load], here: int) -> Component:
    """A bar for all archives; ``here`` are done."""
    parts = sum(load.done_bytes / load.total_bytes for load in loads if load.total_bytes)
    amounts = [
        f"{size(load.done_bytes)} of {size(load.total_bytes)}" for load in loads if load.total_bytes
    ]
    words = [f"Loading {plural(len(loads), 'run')} from {server.where}", *amounts]
    return _bar(words, (here + parts) / (here + len(loads)))


def _reading(server: Server, fetches: Sequence[Fetch]) -> Component:
    """A bar for the metrics of all runs that are being read for the first time, or have been."""
    busy = [fetch for fetch in fetches if fetch.state in _BUSY and not fetch.again]
    done, total = sum(fetch.done for fetch in busy), sum(fetch.total for fetch in busy)
    parts = sum(fetch.done / fetch.total for fetch in busy if fetch.total)
    share = (len(fetches) - len(busy) + parts) / len(fetches)
    words = [f"Reading metrics of {plural(len(busy), 'run')} from {server.where}"]
    return _bar([*words, f"{done:,} of {total:,}"] if total else words, share)


def _bar(words: Sequence[str], share: float) -> Component:
    return html.Div(
        [
            html.Span(" · ".join(words)),
            html.Div(
                html.Div(style={"width": f"{share:.1%}"}),
                className="loads-bar",
                role="progressbar",
                **attributes(
                    aria_label=words[0],
                    aria_valuenow=f"{share * 100:.0f}",
                    aria_valuemin="0",
                    aria_valuemax="100",
                ),
            ),
        ],
        className="loads-line",
    )


def _troubles(
    known: Iterable[tuple[RunEntry, Load | Fetch]],
) -> Mapping[tuple[str, str], list[str]]:
    """Runs by what is wrong with them."""
    found: dict[tuple[str, str], list[str]] = {}
    for run, load in known:
        if load.state is LoadState.FAILED:
            found.setdefault((load.message, load.remedy), []).append(run.short or run.title)
    return found
