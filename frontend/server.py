"""An MLflow server's runs beside those of the store: listed here, loaded when they are opened.

For dashboards that reach the server only. A thread keeps the list while somebody looks: all runs
at first, then the newest and those that run. What the store has is not shown twice (`Source`). Of
runs that radt recorded archives are loaded (`Loading`), of others their metrics are read
(`ServerBeside`).
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from radt.errors import RadtError, TrackingError
from radt.frontend.foreign.remote import ServerBeside
from radt.frontend.load_archives import Task
from radt.frontend.loading import Load, Loading
from radt.frontend.mlflow_api import MlflowApi
from radt.frontend.server_runs import IS_RUNNING, Listed, ServerRun, read_run
from radt.masking import masked
from radt.store.address import StoreAddress
from radt.store.records import RunRecord

log = logging.getLogger(__name__)

#: How often the list is brought up to date, and made anew (runs may be deleted there).
_REFRESH_S = 10.0
_ANEW_S = 900.0
#: While a long list comes, what is there of it is shown so often.
_SHOW_S = 2.0
#: Somebody looks if a page has asked within this time.
_LOOKED_S = 30.0
#: So many runs are listed, the newest.
MAX_RUNS = 20_000


class Server:
    """One MLflow server. Thread-safe; it begins to ask with the first `look`.

    Args:
        uri: Its address.
        store: The store that archives are loaded into.
    """

    def __init__(self, uri: str, store: StoreAddress) -> None:
        self._loads_only = store.is_postgres
        self.where = masked(uri)
        self._uri = uri
        self._loading = Loading(uri, store)
        self._lock = threading.Lock()
        self._beside = ServerBeside(uri)
        self._known: dict[str, Listed] = {}
        self._runs: dict[str, ServerRun] = {}
        self._by_experiment: dict[str, dict[str, ServerRun]] = {}
        self._version = 0
        self._problem: RadtError | None = None
        self._listed = False
        self._looked_s = 0.0
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    # -- what pages ask ---------------------------------------------------------------------------

    def look(self) -> None:
        """Somebody looks: the list is kept up to date from now on for a while."""
        self._looked_s = time.monotonic()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
                    self._thread.start()
        self._wake.set()

    @property
    def version(self) -> int:
        """Changes with the list."""
        return self._version

    @property
    def problem(self) -> RadtError | None:
        """Why the list is not up to date."""
        return self._problem

    @property
    def listed(self) -> bool:
        """Whether all runs have been listed once."""
        return self._listed

    @property
    def loading(self) -> Loading:
        return self._loading

    @property
    def beside(self) -> ServerBeside:
        """Its runs that radt never saw."""
        return self._beside

    def experiments(self) -> Mapping[str, Mapping[str, ServerRun]]:
        """All runs by experiment and id."""
        with self._lock:
            return self._by_experiment

    def runs(self, experiment: str) -> Mapping[str, ServerRun]:
        """The runs of an experiment, by id."""
        return self.experiments().get(experiment, {})

    def open(self, runs: Iterable[ServerRun]) -> None:
        """Load these runs into the store, the first first."""
        self._loading.want(Task(run.record.run_id, run.mlflow_run_id) for run in runs)

    def loads(self, run_ids: Iterable[str]) -> Mapping[str, Load]:
        return self._loading.of(run_ids)

    def may_have_grown(self, stored: RunRecord) -> ServerRun | None:
        """The server's side of a run that was loaded before it had ended; None for others."""
        if stored.status.ended or _is_ours(stored):
            return None
        with self._lock:
            run = self._runs.get(stored.run_id)
        if run is None or not self._loads_only or run.record.status.ended:
            return run
        # Others bring their running runs to Postgres themselves, sooner than archives do.
        return run if self._loading.of([stored.run_id]) else None

    def close(self) -> None:
        """End the thread and the process that loads."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._loading.close()
        self._beside.close()
        if self._thread is not None:
            self._thread.join(timeout=2.0)  # it may wait for the server; it is a daemon

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        api = MlflowApi(self._uri)
        anew_s = 0.0
        while not self._closed:
            self._wake.clear()
            if time.monotonic() - self._looked_s > _LOOKED_S:
                self._wake.wait()
                continue
            try:
                if time.monotonic() >= anew_s:
                    self._list_all(api)
                    anew_s = time.monotonic() + _ANEW_S
                else:
                    self._list_news(api)
                self._say(None)
            except TrackingError as error:
                self._say(error)
            except (KeyError, TypeError, ValueError) as error:
                log.exception("an answer of MLflow")
                self._say(
                    TrackingError(
                        f"MLflow at {self.where} answers what is not understood ({error})",
                        "Is it an MLflow server of version 2 or 3?",
                    )
                )
            self._pause()
        api.close()

    def _pause(self) -> None:
        until_s = time.monotonic() + _REFRESH_S
        while not self._closed and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.2))

    def _list_all(self, api: MlflowApi) -> None:
        """Page by page, each shown at once; what is gone there goes at the end."""
        experiments = api.experiments()
        seen: dict[str, Listed] = {}
        shown_s = 0.0
        for page in api.runs(sorted(experiments), ""):
            seen |= self._read(page, experiments)
            if time.monotonic() - shown_s > _SHOW_S:
                self._take(self._known | seen)
                shown_s = time.monotonic()
            if len(seen) >= MAX_RUNS or self._closed:
                break
        self._take(seen)
        if not self._listed:
            self._listed = True
            self._version += 1

    def _list_news(self, api: MlflowApi) -> None:
        """Runs that began, and those that run or did: theirs may have ended."""
        experiments = api.experiments()
        ids = sorted(experiments)
        known = dict(self._known)
        found: dict[str, Listed] = {}
        for page in api.runs(ids, ""):
            newest = self._read(page, experiments)
            found |= newest
            if newest.keys() & known.keys() or not newest:
                break
        running = {key for key, one in known.items() if not one.ended}
        if running - found.keys():
            for page in api.runs(ids, IS_RUNNING):
                found |= self._read(page, experiments)
            if running - found.keys():  # they have ended, long after they began
                oldest_ms = min(known[one].run.start_ms or 0 for one in running)
                for page in api.runs(ids, f"attributes.start_time >= {oldest_ms}"):
                    found |= self._read(page, experiments)
                    if running <= found.keys():
                        break
                else:
                    for key in running - found.keys():  # deleted there
                        del known[key]
        self._take(known | found)

    def _read(
        self, page: Iterable[Mapping[str, object]], names: Mapping[str, str]
    ) -> dict[str, Listed]:
        found = {}
        for one in page:
            info = one["info"]
            assert isinstance(info, Mapping)
            name = names.get(str(info.get("experiment_id")), "")
            if name:
                run = read_run(one, name, self.where)
                found[run.run.mlflow_id] = run
        return found

    def _take(self, known: Mapping[str, Listed]) -> None:
        if known == self._known:
            return
        ours = {one.ours.record.run_id: one.ours for one in known.values() if one.ours is not None}
        by_experiment: dict[str, dict[str, ServerRun]] = {}
        for run_id, run in ours.items():
            by_experiment.setdefault(run.record.experiment, {})[run_id] = run
        self._beside.take({key: one for key, one in known.items() if not one.run.is_of_radt})
        with self._lock:
            self._known, self._runs, self._by_experiment = dict(known), ours, by_experiment
            self._version += 1

    def _say(self, problem: RadtError | None) -> None:
        if str(problem) != str(self._problem):
            self._version += 1
        self._problem = problem


def _is_ours(run: RunRecord) -> bool:
    """Whether this machine records it, so that the store has its newest values."""
    return run.host == platform.node() and Path(run.spool).exists()
