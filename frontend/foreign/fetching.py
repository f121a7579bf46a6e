"""Metrics of runs of an MLflow server, read in the background when the runs are opened.

The server gives a metric's points page by page in the order of time. Of a run that goes on, only
metrics with a new last point are asked again, from their last page on; what was logged with an
earlier time is found when the run has ended, which is then read once more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from radt.errors import TrackingError
from radt.frontend.foreign.mlflow_run import MlflowRun
from radt.frontend.foreign.points import Row, joined, samples_of
from radt.frontend.loading import RETRY_S, LoadState
from radt.frontend.mlflow_api import MlflowApi
from radt.store.downsample import envelope
from radt.store.records import Samples

log = logging.getLogger(__name__)

#: Runs that are read at the same time.
_THREADS = 3
#: A thread is kept so long after its last run.
_IDLE_S = 20.0
#: A run that goes on is looked at again after this, while somebody looks at it.
REFRESH_S = 5.0
#: News of a run that is being read is shown so often.
_SHOW_S = 1.0
#: Points of one metric; of more, the extremes of each stretch are kept.
_MAX_POINTS = 200_000
_LEFT = 50_000
#: Points of all runs, 24 bytes each, and how many each metric keeps at least.
_CACHED_POINTS = 3_000_000
_FEWEST = 1_000
#: Runs that nobody has asked for in this time make room for others.
_WANTED_S = 120.0


@dataclass(frozen=True, slots=True)
class Fetch:
    """How far a run is: ``done`` of ``total`` metrics. ``due_s`` is when it may be asked again.

    ``again`` says that it had been read before.
    """

    mlflow_id: str
    state: LoadState = LoadState.WAITING
    done: int = 0
    total: int = 0
    ended: bool = False
    message: str = ""
    remedy: str = ""
    due_s: float = 0.0
    again: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A metric as far as it was read. ``token`` asks for the last page, whose points are ``tail``.

    ``latest`` is MLflow's last point of it: time, step and value.
    """

    latest: tuple[str, ...]
    before: Samples = field(default_factory=lambda: samples_of(()))
    tail: Samples = field(default_factory=lambda: samples_of(()))
    token: str = ""

    @property
    def samples(self) -> Samples:
        """All points, in the order of time."""
        return joined([self.before, self.tail])

    def __len__(self) -> int:
        return len(self.before) + len(self.tail)


class Fetching:
    """Reads metrics of one server's runs, by MLflow's ids. Thread-safe.

    Args:
        uri: The server.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._condition = threading.Condition()
        self._fetches: dict[str, Fetch] = {}
        self._histories: dict[str, dict[str, History]] = {}
        self._wanted_s: dict[str, float] = {}
        self._queue: deque[str] = deque()
        self._threads = 0
        self._news = 0
        self._version = 0
        self._closed = False

    @property
    def token(self) -> str:
        """Changes with every news of any run, and when what failed may be asked for again."""
        with self._condition:
            now = time.monotonic()
            due = sum(
                f.state is LoadState.FAILED and now >= f.due_s for f in self._fetches.values()
            )
        return f"{self._news}.{due}"

    @property
    def version(self) -> int:
        """Changes with the points that are here."""
        return self._version

    @property
    def is_busy(self) -> bool:
        """Whether something is being read, or waits."""
        with self._condition:
            states = {fetch.state for fetch in self._fetches.values()}
        return bool(states & {LoadState.WAITING, LoadState.LOADING})

    def of(self, mlflow_ids: Iterable[str]) -> Mapping[str, Fetch]:
        """What is known of those runs that were asked for."""
        with self._condition:
            return {one: self._fetches[one] for one in mlflow_ids if one in self._fetches}

    def histories(self, mlflow_id: str) -> Mapping[str, History]:
        """The metrics of a run that are here, by key."""
        with self._condition:
            return dict(self._histories.get(mlflow_id, {}))

    def want(self, mlflow_ids: Iterable[str]) -> None:
        """Read these runs, in this order, unless that is being done, or was done a moment ago."""
        with self._condition:
            now = time.monotonic()
            for mlflow_id in mlflow_ids:
                self._wanted_s[mlflow_id] = now
                known = self._fetches.get(mlflow_id)
                if known is not None:
                    busy = known.state in (LoadState.WAITING, LoadState.LOADING)
                    if busy or now < known.due_s:
                        continue
                again = known is not None and not known.message
                self._note(replace(known or Fetch(mlflow_id), state=LoadState.WAITING, again=again))
                self._queue.append(mlflow_id)
            while self._threads < min(_THREADS, len(self._queue)) and not self._closed:
                self._threads += 1
                threading.Thread(target=self._work, name="mlflow-metrics", daemon=True).start()
            self._condition.notify_all()

    def look(self) -> None:
        """Somebody looks: runs that go on, and were asked for a moment ago, are looked at again."""
        with self._condition:
            now = time.monotonic()
            due = [
                one
                for one, fetch in self._fetches.items()
                if fetch.state is LoadState.LOADED
                and now >= fetch.due_s
                and now - self._wanted_s[one] < _WANTED_S
            ]
            wanted_s = {one: self._wanted_s[one] for one in due}
        if due:
            self.want(due)
            with self._condition:
                self._wanted_s |= wanted_s  # this does not count as asking

    def close(self) -> None:
        """No more; threads that wait for the server end by themselves."""
        with self._condition:
            self._closed = True
            self._queue.clear()
            self._condition.notify_all()

    # -- the threads ------------------------------------------------------------------------------

    def _work(self) -> None:
        api = MlflowApi(self._uri)
        while (mlflow_id := self._next()) is not None:
            fetch = self._fetches[mlflow_id]
            try:
                ended = self._fetch(api, mlflow_id)
            except TrackingError as error:
                self._failed(fetch, error.message, error.remedy or "It is tried again")
            except (KeyError, TypeError, ValueError) as error:
                log.exception("metrics of run %s", mlflow_id)
                message = f"MLflow at {api.where} answers what is not understood ({error})"
                self._failed(fetch, message, "Is it an MLflow server of version 2 or 3?")
            else:
                with self._condition:
                    now = time.monotonic()
                    self._note(
                        replace(
                            self._fetches[mlflow_id],
                            state=LoadState.LOADED,
                            ended=ended,
                            message="",
                            remedy="",
                            due_s=float("inf") if ended else now + REFRESH_S,
                        )
                    )
        api.close()

    def _next(self) -> str | None:
        """The next run; None when there was none for a while, and the thread is to end."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._closed, _IDLE_S)
            if not self._queue or self._closed:
                self._threads -= 1
                return None
            mlflow_id = self._queue.popleft()
            self._note(replace(self._fetches[mlflow_id], state=LoadState.LOADING))
            return mlflow_id

    def _fetch(self, api: MlflowApi, mlflow_id: str) -> bool:
        """Read what is new of a run; returns whether it has ended.

        Raises:
            TrackingError: The server does not answer, or refuses.
        """
        answer = api.run(mlflow_id)
        ended = MlflowRun.of_answer(answer, "").run_status.ended
        metrics = answer.get("data", {}).get("metrics", ())
        with self._condition:
            known = dict(self._histories.get(mlflow_id, {}))
            before = self._fetches[mlflow_id]
        # Points may have come late; and the last of all are worth a second look.
        anew = ended and not before.ended
        shown_s = time.monotonic()
        changed = False
        for place, metric in enumerate(metrics):
            key, latest = str(metric["key"]), _latest(metric)
            history = known.get(key)
            if history is None or history.latest != latest or (anew and before.again):
                start = History(latest) if history is None or anew else history
                known[key] = self._history(api, mlflow_id, key, replace(start, latest=latest))
                changed = True
            if self._closed:
                break
            if time.monotonic() - shown_s > _SHOW_S:
                shown_s = time.monotonic()
                self._keep(mlflow_id, known, place + 1, len(metrics), changed=changed)
        self._keep(mlflow_id, known, len(metrics), len(metrics), changed=changed)
        return ended

    def _history(self, api: MlflowApi, mlflow_id: str, key: str, known: History) -> History:
        """Go on from the last page."""
        before, token = known.before, known.token
        while True:
            points, next_token = api.history(mlflow_id, key, token)
            page = samples_of([_row(point) for point in points])
            if not next_token or self._closed:
                return replace(known, before=before, tail=page, token=token)
            before = joined([before, page])
            if len(before) > _MAX_POINTS:
                before = envelope(before, _LEFT)
            token = next_token

    def _keep(
        self, mlflow_id: str, known: Mapping[str, History], done: int, total: int, *, changed: bool
    ) -> None:
        with self._condition:
            self._histories[mlflow_id] = dict(known)
            self._make_room(mlflow_id)
            self._version += changed
            self._note(replace(self._fetches[mlflow_id], done=done, total=total))

    def _make_room(self, mlflow_id: str) -> None:
        """Of runs that nobody looks at any longer; then of this one. With the lock held."""
        sizes = {one: sum(map(len, found.values())) for one, found in self._histories.items()}
        now = time.monotonic()
        for one in sorted(sizes, key=lambda key: self._wanted_s.get(key, 0.0)):
            if sum(sizes.values()) <= _CACHED_POINTS:
                return
            busy = self._fetches[one].state is not LoadState.LOADED
            if one != mlflow_id and not busy and now - self._wanted_s.get(one, 0.0) > _WANTED_S:
                del self._histories[one], self._fetches[one], sizes[one]
        own = self._histories[mlflow_id]
        room = _CACHED_POINTS - (sum(sizes.values()) - sizes[mlflow_id])
        if sizes[mlflow_id] > room:
            most = max(_FEWEST, room // max(1, len(own)))
            self._histories[mlflow_id] = {
                key: replace(one, before=envelope(one.before, most)) for key, one in own.items()
            }

    def _failed(self, fetch: Fetch, message: str, remedy: str) -> None:
        with self._condition:
            self._note(
                replace(
                    self._fetches[fetch.mlflow_id],
                    state=LoadState.FAILED,
                    message=message,
                    remedy=remedy,
                    due_s=time.monotonic() + RETRY_S,
                )
            )

    def _note(self, fetch: Fetch) -> None:
        """With the lock held."""
        self._fetches[fetch.mlflow_id] = fetch
        self._news += 1


def _latest(metric: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(metric.get(name)) for name in ("timestamp", "step", "value"))


def _row(point: Mapping[str, Any]) -> Row:
    # Numbers that JSON has not are written as text: "NaN", "Infinity".
    value = float(point.get("value", 0.0))
    return int(point.get("timestamp", 0)), value, False, int(point.get("step", 0))
