"""``radt sync``: upload pending data to MLflow and Postgres."""

from __future__ import annotations

import math
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from radt import settings, units
from radt.cli.options import setting_option
from radt.cli.render import folded
from radt.collector.client import CollectorClient
from radt.collector.delivery import Destination, Way
from radt.collector.leftovers import Drained, drain_leftovers
from radt.delivery.backlog import Backlog, compare_again, mlflow_backlogs, postgres_backlogs
from radt.errors import RadtError
from radt.home import Home
from radt.masking import is_masked, masked, unmasked
from radt.render.model import printable
from radt.settings import Setting, Settings
from radt.store.backend import StoreAddress
from radt.store.losses import kept, losses
from radt.store.reader import StoreReader

EXIT_LEFT = 1
_LOOK_S = 0.5
#: With a problem and no progress for so long, the upload is given up for now.
_PATIENCE_S = 8.0
_END_S = 120.0
#: How long a collector that answers may take to store what killed processes have left.
_RECORD_S = 60.0
#: How long a collector that is there may take to answer; it may be stopped.
_HURRY_PATIENCE_S = 2.0
#: Of runs whose tracking URI is another one than is set now.
_HIDDEN = "the store keeps no user and password. Run `radt sync --tracking-uri URI` with both in it"
#: Columns before the text of a line: a mark and a name.
_INDENT = 13


@click.command("sync")
@setting_option(settings.HOME)
@setting_option(settings.STORE_URI)
@setting_option(settings.TRACKING_URI)
@click.option(
    "--all", "everything", is_flag=True, help="Compare every run with its copy in Postgres again."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this time, also if a server never answers; what is left is named.",
)
def command(
    home: str | None,
    store_uri: str | None,
    tracking_uri: str | None,
    everything: bool,
    timeout_s: float,
) -> int:
    """Upload pending data to MLflow and Postgres.

    Journals that nobody reads are read into the store first: those of scripts whose collector did
    not answer or was killed with them, and those that a restart of the machine left behind. You can
    interrupt with Ctrl-C; the next call continues. With --tracking-uri, only the runs of that
    MLflow server are uploaded. The store keeps no passwords of tracking URIs: those that are set
    now are used. Exits with 1 if something is left, a journal included. Values that journals have
    lost are named, for as long as the run's folder has a folder "damaged".
    """
    deadline_s = time.monotonic() + timeout_s
    given: dict[Setting[Any], str | None] = {
        settings.HOME: home,
        settings.STORE_URI: store_uri,
        settings.TRACKING_URI: tracking_uri,
    }
    values = Settings.of(Path.cwd(), given)
    place = Home(values[settings.HOME])
    mlflow = place.tracking_uri(values[settings.TRACKING_URI])
    postgres = place.store_uri(store_uri or values[settings.STORE_URI], tracking_uri=mlflow)
    console = Console(highlight=False)
    console.print()
    drained = _drain(place, min(deadline_s, time.monotonic() + _RECORD_S))
    _print_drained(drained, console)
    _print_losses(place, drained, console)
    if everything and postgres:
        compare_again(place.store_path, postgres)
    ways: list[_Upload] = [
        _ToMlflow(place.store_path, uri)
        for uri in _tracking_uris(place.store_path, mlflow, only=bool(tracking_uri))
    ]
    if postgres:
        ways.append(_ToPostgres(place.store_path, postgres))
    if not any(isinstance(way, _ToMlflow) for way in ways):
        done = (
            _line("✔", "green", "MLflow", "up to date", place=masked(mlflow))
            if mlflow
            else _line("–", "dim", "MLflow", "tracking-uri is none", "dim")
        )
        console.print(done, soft_wrap=True)
    if ways:
        _hurry(place)
    left = _follow(ways, console, deadline_s)
    if not postgres:
        text = "no database set (--store-uri); samples stay on this machine"
        console.print(_line("–", "dim", "Postgres", text, "dim"), soft_wrap=True)
    console.print()
    return EXIT_LEFT if left or drained.left else 0


def _tracking_uris(store: Path, current: str, *, only: bool) -> list[str]:
    """Return the MLflow addresses that runs wait for, with the password of the current one."""
    with closing(StoreReader(store)) as reader:
        uris = list(dict.fromkeys(workload.tracking_uri for workload in reader.workloads()))
        waiting = [
            uri
            for uri in uris
            if uri and (reader.runs_to_deliver(uri) or reader.workloads_to_deliver(uri))
        ]
    known = [unmasked(uri, [current]) for uri in waiting]
    return [uri for uri in known if not only or uri == current]


def _drain(home: Home, deadline_s: float) -> Drained:
    """Read what journals hold into the store; wait for a collector that has some of it to store."""
    drained = drain_leftovers(home)
    if drained.waiting:
        # A collector that was killed has left word of its runs: the next one ends them.
        patience_s = settings.variable(settings.COLLECTOR_PATIENCE_S, os.environ).value
        try:
            CollectorClient.connect(
                timeout_s=max(0.0, deadline_s - time.monotonic()),
                patience_s=min(patience_s, max(_LOOK_S, deadline_s - time.monotonic())),
            ).close()
        except (RadtError, OSError):
            return drained  # nobody ends them now
    ended, points = [*drained.ended], drained.points
    while drained.waiting and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        before, drained = drained, drain_leftovers(home)
        ended += [*drained.ended, *set(before.waiting).difference(drained.waiting)]
        points += drained.points
    return replace(drained, ended=tuple(dict.fromkeys(ended)), points=points)


def _hurry(home: Home) -> None:
    """Tell the collector that somebody waits: while runs are on, it puts uploads off."""
    try:
        with CollectorClient.connect(
            start=False, timeout_s=0.0, patience_s=_HURRY_PATIENCE_S
        ) as client:
            client.hurry(home.store_path)
    except (RadtError, OSError):
        pass  # without one, nobody uploads but us


def _print_drained(drained: Drained, console: Console) -> None:
    parts = []
    if drained.ended:
        parts.append(f"{units.plural(len(drained.ended), 'run')} ended that nobody had ended")
    if drained.points:
        parts.append(f"{units.plural(drained.points, 'value')} from journals")
    text = ", ".join(parts) or ("nothing new" if drained.left else "journals are empty")
    console.print(_line("✔", "green", "store", text), soft_wrap=True)
    for run_id, why in drained.failed.items():
        console.print(_line("✘", "red", "journal", f"{run_id[:12]}: {why}"), soft_wrap=True)
    for run_id in drained.unknown:
        text = f"{run_id[:12]}: not in the store; its journal is kept"
        console.print(_line("!", "yellow", "journal", text), soft_wrap=True)
    for run_id in drained.waiting:
        text = f"{run_id[:12]}: a collector has it and does not store it; is it stopped?"
        console.print(_line("✘", "red", "journal", text), soft_wrap=True)


def _print_losses(home: Home, drained: Drained, console: Console) -> None:
    """Name the runs that have lost values just now or have damaged files."""
    runs = {*drained.ended, *drained.drained, *kept(home)}
    with closing(StoreReader(home.store_path)) as reader:
        for run_id, lost in losses(reader, home).items():
            if run_id in runs:
                line = _line("!", "yellow", "journal", f"{run_id[:12]}: {lost}")
                console.print(line, soft_wrap=True)


# -- uploads --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    """The number of runs left, and the problem that keeps them."""

    left: int
    problem: str = ""


class _Upload(ABC):
    """A process that uploads runs, as the collector's do, and what is left to upload.

    If the collector already has one for this destination, that one uploads and ours waits.
    """

    subject: str
    place: str

    def __init__(self, store: Path, uri: str, way: Way) -> None:
        self._store = store
        self._destination = Destination(store, uri, way)
        self._process: subprocess.Popen[bytes] | None = None
        self._last = _Look(0)
        self._changed_s = time.monotonic()
        self._total: int | None = None
        self.over = False
        #: When it has to have ended, monotonic.
        self.deadline_s = math.inf

    @abstractmethod
    def look(self) -> _Look:
        """Return what is left now."""

    def start(self) -> None:
        self._last = self.look()
        self._total = self._last.left
        self._process = subprocess.Popen(
            self._destination.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=os.environ | self._destination.environment(),
            start_new_session=True,  # Ctrl-C ends us; it then finishes its transaction
        )
        self._send(b"\n")

    def check(self, *, more_comes: bool) -> None:
        """Update the progress; end the process once it cannot make more.

        Args:
            more_comes: Another upload still writes what this one sends, such as MLflow's ids.
        """
        if self.over:
            return
        assert self._process is not None
        now = self.look()
        if now.left > self._last.left:
            self._send(b"\n")
        if now.left != self._last.left:
            self._changed_s = time.monotonic()
        self._last = now
        self._total = max(self._total or 0, now.left)
        ended = self._process.poll() is not None
        stuck = bool(now.problem) and time.monotonic() - self._changed_s > _PATIENCE_S
        if ended or stuck or (self._is_done(now) and not more_comes):
            self.over = True
            self.close()
            self._last = self.look()

    def _is_done(self, now: _Look) -> bool:
        return now.left == 0 and not now.problem

    def give_up(self) -> None:
        """End the process, time being up."""
        if not self.over:
            self.over = True
            self.kill()
            self._last = replace(self.look(), problem=self._last.problem or "time is up")

    def close(self) -> None:
        """Let the process finish, up to a limit."""
        if self._process is None:
            return
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(min(_END_S, max(0.0, self.deadline_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill the process; the next one uploads the rest."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def left(self) -> bool:
        return self._last.left > 0 or bool(self._last.problem)

    def line(self) -> Text:
        last, total = self._last, self._total or 0
        if not self.over:
            text = f"{total - last.left} of {units.plural(total, 'run')}"
            return _line("▶", "cyan", self.subject, text, problem=last.problem, place=self.place)
        if not self.left:
            text = f"{units.plural(total, 'run')} uploaded" if total else "up to date"
            return _line("✔", "green", self.subject, text, place=self.place)
        text = f"{units.plural(last.left, 'run')} not uploaded"
        why = last.problem or "the process ended; its log is in the runtime folder"
        return _line("✘", "red", self.subject, text, problem=why, place=self.place)

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()


class _ToMlflow(_Upload):
    subject = "MLflow"

    def __init__(self, store: Path, uri: str) -> None:
        super().__init__(store, uri, Way.MLFLOW)
        self._uri = uri
        self.place = masked(uri)

    def start(self) -> None:
        if not is_masked(self._uri):
            super().start()
            return
        self.over = True
        self._last = self.look()
        self._total = self._last.left
        if self._last.left:
            self._last = replace(self._last, problem=_HIDDEN)

    def look(self) -> _Look:
        with closing(StoreReader(self._store)) as reader:
            for backlog in mlflow_backlogs(reader):
                if backlog.address == self.place:
                    return _Look(backlog.ended or self._ended_workloads(reader), backlog.problem)
        return _Look(0)

    def _ended_workloads(self, reader: StoreReader) -> int:
        waiting = reader.workloads_to_deliver(self._uri)
        return sum(1 for workload in waiting if workload.ended_ns is not None)


class _ToPostgres(_Upload):
    subject = "Postgres"

    def __init__(self, store: Path, uri: str) -> None:
        super().__init__(store, uri, Way.POSTGRES)
        self._uri = uri
        self.place = str(StoreAddress.of(uri))

    def look(self) -> _Look:
        backlog = self._backlog()
        return _Look(backlog.ended, backlog.short_problem)

    def _is_done(self, now: _Look) -> bool:
        # Before the first connection, what the database has is unknown.
        return super()._is_done(now) and bool(self._backlog().identity)

    def _backlog(self) -> Backlog:
        return next(
            backlog
            for backlog in postgres_backlogs(self._store, self._uri)
            if backlog.address == self.place
        )


def _follow(ways: Sequence[_Upload], console: Console, deadline_s: float) -> bool:
    """Run all uploads to their end or until the deadline; return whether something is left."""
    try:
        for way in ways:
            way.deadline_s = deadline_s
            way.start()
        with Live(console=console, transient=True, auto_refresh=False) as live:
            while not all(way.over for way in ways):
                delivering = any(isinstance(way, _ToMlflow) and not way.over for way in ways)
                for way in ways:
                    way.check(more_comes=delivering and isinstance(way, _ToPostgres))
                if console.is_terminal:
                    live.update(Group(*_lines(ways, console)), refresh=True)
                if time.monotonic() >= deadline_s:
                    for way in ways:
                        way.give_up()
                time.sleep(_LOOK_S)
    except BaseException:
        for way in ways:
            way.kill()
        raise
    for line in _lines(ways, console):
        console.print(line, soft_wrap=True)
    return any(way.left for way in ways)


def _lines(ways: Sequence[_Upload], console: Console) -> Iterator[Text]:
    for way in ways:
        first, *problem = way.line().split("\n")
        yield first
        for line in problem:
            yield from folded(line, console, _INDENT)


def _line(
    mark: str,
    style: str,
    subject: str,
    text: str,
    dim: str = "",
    *,
    problem: str = "",
    place: str = "",
) -> Text:
    line = Text.assemble((mark, style), f"  {subject:<9} ", (printable(text), dim))
    if place:
        line.append(f"   {printable(place)}", "dim")
    if problem:
        line.append(f"\n{'':<{_INDENT}}{printable(problem)}", "red" if mark == "✘" else "dim")
    return line
