"""Which archives are being loaded, which wait, and what came of them.

One process loads (`radt.frontend.load_archives`), one run at a time; it is started with the first
and ended when it has nothing to do. A run that several browsers ask for is loaded once.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from radt.frontend.load_archives import News, NewsKind, Task
from radt.store.address import StoreAddress

log = logging.getLogger(__name__)

#: The process is kept so long after its last run.
_IDLE_S = 20.0
#: What failed is tried again after this, and what may have grown is looked at again.
RETRY_S = 60.0
REFRESH_S = 30.0


class LoadState(StrEnum):
    """How far a run's archive is."""

    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Load:
    """One run's archive on its way; bytes are 0 until they are known.

    ``complete`` says that no more will come, ``missing`` that the server has none; ``due_s`` is
    the monotonic time from which it may be asked for again.
    """

    task: Task
    state: LoadState = LoadState.WAITING
    done_bytes: int = 0
    total_bytes: int = 0
    complete: bool = False
    missing: bool = False
    message: str = ""
    remedy: str = ""
    due_s: float = 0.0
    again: bool = False


class Loading:
    """Loads archives of one server into one store. Thread-safe.

    Args:
        tracking_uri: The server.
        store: The store; one of Postgres with a role that may write.
    """

    def __init__(self, tracking_uri: str, store: StoreAddress) -> None:
        self._where = {"tracking_uri": tracking_uri, "store": store.uri or str(store.path)}
        self._condition = threading.Condition()
        self._loads: dict[str, Load] = {}
        self._queue: deque[str] = deque()
        self._count = 0
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def token(self) -> str:
        """Changes with every news of any run, and when what failed may be asked for again."""
        with self._condition:
            now = time.monotonic()
            due = sum(
                load.state is LoadState.FAILED and now >= load.due_s
                for load in self._loads.values()
            )
        return f"{self._count}.{due}"

    @property
    def is_busy(self) -> bool:
        """Whether something is being loaded, or waits."""
        with self._condition:
            states = {load.state for load in self._loads.values()}
        return bool(states & {LoadState.WAITING, LoadState.LOADING})

    @property
    def pid(self) -> int | None:
        """The process that loads, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def of(self, run_ids: Iterable[str]) -> Mapping[str, Load]:
        """What is known of those runs that were asked for."""
        with self._condition:
            return {run_id: self._loads[run_id] for run_id in run_ids if run_id in self._loads}

    def want(self, tasks: Iterable[Task]) -> None:
        """Load these runs, in this order, unless that is being done, or was done a moment ago."""
        with self._condition:
            now = time.monotonic()
            for task in tasks:
                known = self._loads.get(task.run_id)
                if known is not None:
                    busy = known.state in (LoadState.WAITING, LoadState.LOADING)
                    if busy or now < known.due_s:
                        continue
                self._loads[task.run_id] = Load(task, again=known is not None and not known.message)
                self._queue.append(task.run_id)
                self._count += 1
            if self._queue and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="loading", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def close(self) -> None:
        """End the process, also in the midst of a run: the next time it goes on from there."""
        with self._condition:
            self._closed = True
            self._queue.clear()
            process, thread = self._process, self._thread
            self._condition.notify_all()
        if process is not None:
            process.kill()
        if thread is not None:
            thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (run_id := self._next()) is not None:
            self._load(run_id)

    def _next(self) -> str | None:
        """The next run; None when there was none for a while, and the thread is to end."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._closed, _IDLE_S)
            if self._queue and not self._closed:
                run_id = self._queue.popleft()
                self._note(replace(self._loads[run_id], state=LoadState.LOADING))
                return run_id
            self._thread = None
            process, self._process = self._process, None
        _end(process)
        return None

    def _load(self, run_id: str) -> None:
        try:
            news = self._talk(self._loads[run_id].task)
        except OSError as error:
            news = News(
                run_id,
                NewsKind.FAILED,
                message=f"the process that loads archives cannot be started: {error.strerror}",
                remedy="It is tried again",
            )
        with self._condition:
            load = self._loads[run_id]
            failed = news.kind is NewsKind.FAILED
            pause_s = RETRY_S if failed else float("inf") if news.complete else REFRESH_S
            self._note(
                replace(
                    load,
                    state=LoadState.FAILED if failed else LoadState.LOADED,
                    done_bytes=news.done_bytes,
                    total_bytes=news.total_bytes,
                    complete=news.complete,
                    missing=news.missing,
                    message=news.message,
                    remedy=news.remedy,
                    due_s=time.monotonic() + pause_s,
                )
            )

    def _talk(self, task: Task) -> News:
        """Have the process load a run, and listen until it has.

        Raises:
            OSError: It cannot be started.
        """
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(task.line())
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; reading says so
        for line in process.stdout:
            try:
                news = News.parse(line)
            except ValueError:
                log.warning("the process that loads archives said %r", line[:200])
                continue
            if news.kind is not NewsKind.PROGRESS:
                return news
            with self._condition:
                load = self._loads[task.run_id]
                self._note(replace(load, done_bytes=news.done_bytes, total_bytes=news.total_bytes))
        with self._condition:
            self._process = None
        code = _end(process)
        return News(
            task.run_id,
            NewsKind.FAILED,
            message=f"the process that loads archives ended ({_how(code)})",
            remedy="It is tried again in a minute; the terminal of `radt dashboard` may say more",
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radt.frontend.load_archives"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the dashboard, which ends it
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._where) + "\n")
        with self._condition:
            self._process = process
            if self._closed:
                process.kill()
        return process

    def _note(self, load: Load) -> None:
        """With the lock held."""
        self._loads[load.task.run_id] = load
        self._count += 1


def _end(process: subprocess.Popen[str] | None) -> int:
    """Have it end with its input, and wait for it."""
    if process is None:
        return 0
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    return process.wait()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
