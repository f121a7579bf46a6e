"""Waits until MLflow and Postgres have everything that a data folder holds.

All waits use it: `radt sync`, experiments and scripts with ``--wait``, and the jobs of a cluster.
The collector uploads; the store knows the pending data.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from radt import settings, units
from radt.collector.client import CollectorClient
from radt.collector.delivery import Destination, DestinationKind
from radt.collector.recovery import Recovered, recover_runs
from radt.delivery.backlog import Backlog, backlogs
from radt.delivery.problems import MLFLOW, POSTGRES
from radt.errors import CollectorError, RadtError, UploadError
from radt.home import HOME_VARIABLE, STORE_VARIABLE, TRACKING_VARIABLE, Home
from radt.masking import is_masked, masked
from radt.render.model import printable
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.store.backend import StoreAddress

EXIT_LEFT = 1
#: Columns before a line's text: a mark and a name.
INDENT = 13
#: Seconds for a responsive collector to store the remaining values of killed processes.
RECORD_S = 60.0
_LOOK_S = 0.5
_CONNECT_S = 15.0
#: Seconds between progress lines if the output is not a terminal.
_PRINT_S = 10.0
#: The problem of runs whose tracking URI differs from the current setting.
_HIDDEN = (
    "the store does not keep user and password. Run `radt sync --tracking-uri URI` with both in URI"
)


class Upload:
    """The progress of the upload to one destination."""

    def __init__(self, kind: str, destination: Destination, place: str) -> None:
        self.kind = kind
        self.destination = destination
        self.place = place
        self.total = self.left = 0
        self.problem = ""
        self.complete = False
        self._changed_s = time.monotonic()

    @property
    def is_hidden(self) -> bool:
        """Return True if its user and password are unknown, which the store does not keep."""
        return is_masked(self.destination.uri)

    def update(self, backlog: Backlog | None, problem: str = "") -> None:
        """Update from the store's backlog and the problem of the uploading process."""
        before = self.left
        self.left = 0 if backlog is None else backlog.left
        known = "" if backlog is None or backlog.is_minor else backlog.short_problem
        self.problem = problem or known
        if self.left and self.is_hidden:
            self.problem = _HIDDEN
        self.complete = backlog is None or backlog.complete
        self.total = max(self.total, self.left)
        if self.left != before:
            self._changed_s = time.monotonic()

    def is_stuck(self, patience_s: float) -> bool:
        """Return True if a problem has prevented any progress for `patience_s`."""
        if self.is_hidden:
            return True
        return bool(self.problem) and time.monotonic() - self._changed_s > patience_s

    def lines(self, *, over: bool = False) -> list[Text]:
        """Return a line with the progress and one with the problem; ``over`` at the end."""
        total = units.plural(self.total, "run")
        if self.complete:
            text = f"{total} uploaded" if self.total else "up to date"
            return [report_line("✔", "green", self.kind, text, place=self.place)]
        if not over:
            text, mark, style = f"{self.total - self.left} of {total}", "▶", "cyan"
        else:
            text, mark, style = f"{units.plural(self.left, 'run')} not uploaded", "✘", "red"
        lines = [report_line(mark, style, self.kind, text, place=self.place)]
        if problem := self.problem or ("time is up" if over else ""):
            lines.append(Text(" " * INDENT + printable(problem), style if over else "dim"))
        return lines


def report_line(
    mark: str, style: str, subject: str, text: str, text_style: str = "", *, place: str = ""
) -> Text:
    """Return a line with a mark, a name and a text."""
    line = Text.assemble((mark, style), f"  {subject:<9} ", (printable(text), text_style))
    if place:
        line.append(f"   {printable(place)}", "dim")
    return line


class PendingUploads:
    """The pending uploads of a store.

    Args:
        store: The store's file.
        tracking_uris: Addresses of MLflow; one without its password can only be reported.
        store_uri: The Postgres database; empty for none.

    Raises:
        StoreError: From all methods, if the store cannot be read.
    """

    def __init__(self, store: Path, tracking_uris: Sequence[str], store_uri: str) -> None:
        self._store = store
        self._store_uri = store_uri
        self._uris = [uri for uri in tracking_uris if uri and not is_masked(uri)]
        self._problems: dict[str, str] = {}
        self.uploads = [
            Upload(MLFLOW, Destination(store, uri, DestinationKind.MLFLOW), masked(uri))
            for uri in tracking_uris
            if uri
        ]
        if store_uri:
            database = Destination(store, store_uri, DestinationKind.POSTGRES)
            self.uploads.append(Upload(POSTGRES, database, str(StoreAddress.of(store_uri))))

    def look(self) -> bool:
        """Read the pending uploads; return True if there are none."""
        if not self.uploads:
            return True
        known = {(one.kind, one.address): one for one in backlogs(self._store, self._store_uri)}
        for upload in self.uploads:
            problem = self._problems.get(upload.destination.label, "")
            upload.update(known.get((upload.kind, upload.place)), problem)
        return all(upload.complete for upload in self.uploads)

    def wait(
        self,
        deadline_s: Callable[[], float],
        *,
        patience_s: float = math.inf,
        show: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until everything is uploaded; return True if it was.

        Args:
            deadline_s: Returns the time limit on the monotonic clock.
            patience_s: How long a problem may prevent an upload from making progress.
            show: Called after each update of `uploads`, to show them.
        """
        with CollectorClient(
            start=True, timeout_s=_CONNECT_S, patience_s=_CONNECT_S, deadline_s=deadline_s()
        ) as client:
            while not self.look():
                show()
                stuck = all(one.complete or one.is_stuck(patience_s) for one in self.uploads)
                if stuck or time.monotonic() >= deadline_s():
                    return False
                self._ask(client)
                time.sleep(_LOOK_S)
        return True

    def _ask(self, client: CollectorClient) -> None:
        """Ask the collector to upload now; a new one does not know the destinations."""
        labels = {one.destination.label for one in self.uploads if not one.is_hidden}
        try:
            if not labels <= self._problems.keys():
                for uri in self._uris or [""]:
                    client.deliver(self._store, uri, self._store_uri)
            self._problems = client.flush(self._store)
        except CollectorError as error:
            self._problems = {one.destination.label: str(error) for one in self.uploads}


def store_leftovers(home: Home, deadline_s: float) -> Recovered:
    """Read the journals' content into the store, or wait until the collector has stored it.

    Raises:
        StoreError: The store cannot be written.
    """
    drained = recover_runs(home)
    if drained.waiting:
        # A killed collector has left a list of its runs: the next one ends them.
        patience_s = settings.variable(settings.COLLECTOR_PATIENCE_S, os.environ).value
        try:
            CollectorClient(
                timeout_s=max(0.0, deadline_s - time.monotonic()),
                patience_s=min(patience_s, max(_LOOK_S, deadline_s - time.monotonic())),
            ).reach().close()
        except (RadtError, OSError):
            return drained  # no collector will end them now
    while drained.waiting and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        before, drained = drained, recover_runs(home)
        done = [*before.ended, *drained.ended, *set(before.waiting).difference(drained.waiting)]
        drained.ended = list(dict.fromkeys(done))
        drained.points += before.points
    return drained


def follow(
    delivery: PendingUploads,
    output: RunConsole,
    deadline_s: Callable[[], float],
    patience_s: float = math.inf,
) -> bool:
    """Wait for uploads and show their progress; return True if everything was uploaded."""
    printed: list[Text] = []
    printed_s = time.monotonic()

    def show() -> None:
        nonlocal printed, printed_s
        if output.is_terminal:
            shown = [line for upload in delivery.uploads for line in upload.lines()]
            output.show_text(lambda _width, _height: Text("\n").join(shown))
        elif time.monotonic() >= printed_s + _PRINT_S:
            lines = [line for one in delivery.uploads if not one.complete for line in one.lines()]
            for line in lines:
                if line not in printed:
                    output.say(line, indent=INDENT)
            printed, printed_s = lines, time.monotonic()

    try:
        done = delivery.wait(deadline_s, patience_s=patience_s, show=show)
    finally:
        output.hide_live()
    for upload in delivery.uploads:
        for line in upload.lines(over=True):
            output.say(line, indent=INDENT)
    return done


def deliver_before_exit(
    home: Home, tracking_uri: str, store_uri: str, output: RunConsole, stop: StopRequest
) -> None:
    """Upload everything in a data folder before this process ends.

    Ctrl-C ends the wait. SIGTERM does not: its sender decides how much time is left after it.

    Raises:
        UploadError: Something is left.
        StoreError: The store cannot be read or written.
    """
    if not (tracking_uri or store_uri):
        return
    interrupts = stop.interrupts
    limit_s = settings.variable(settings.COLLECTOR_DELIVERY_S, os.environ).value
    until_s = time.monotonic() + limit_s

    def deadline_s() -> float:
        return -math.inf if stop.is_hurried or stop.interrupts > interrupts else until_s

    left = store_leftovers(home, min(until_s, time.monotonic() + RECORD_S)).left
    delivery = PendingUploads(home.store_path, [tracking_uri], store_uri)
    if not delivery.look():
        places = " and ".join(f"{one.kind} at {one.place}" for one in delivery.uploads)
        output.say(
            f"  radt uploads to {places} before it ends, for up to {units.duration(limit_s)}; "
            f"until then all data is in {home.path}",
            "dim",
            indent=2,
        )
        left = not follow(delivery, output, deadline_s) or left
    if left:
        raise UploadError(
            f"some data is only in {home.path}",
            f"Keep this folder, and run `radt sync --home {shlex.quote(str(home.path))}`",
        )


def main() -> int:
    """Deliver for a script that is about to end; environment variables name the addresses."""
    home = Home(Path(os.environ[HOME_VARIABLE]))
    tracking_uri = os.environ.get(TRACKING_VARIABLE, "")
    store_uri = os.environ.get(STORE_VARIABLE, "")
    stop = StopRequest()
    with RunConsole(Console(stderr=True, highlight=False)) as output, stop.listening():
        try:
            deliver_before_exit(home, tracking_uri, store_uri, output, stop)
        except RadtError as error:
            output.say(f"radt: {error}")
            return EXIT_LEFT
    return 0


if __name__ == "__main__":
    sys.exit(main())
