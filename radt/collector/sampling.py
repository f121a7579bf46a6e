"""Sampling: one thread per listener and interval, its schedule, and the handling of failures.

The schedule is absolute: reading n is due at ``n * interval`` of the monotonic clock, so it never
drifts, and listeners of equal intervals read at the same instant. A listener that raises is closed
and recreated; after three failures in a row it is dropped. A reading that does not return cannot be
stopped in Python: its thread is abandoned and a new instance takes over, at most three times.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from radt.collector.guardian import MAX_STRIKES, Heartbeat, ReadingMark
from radt.collector.ledger import ListenerState
from radt.collector.processes import ProcessTable
from radt.collector.routing import SortedReadings
from radt.collector.runs import RegisteredRun
from radt.errors import ListenerError, ListenerUnavailableError, UsageError, described
from radt.listeners import registry
from radt.listeners.api import Availability, Listener, Reading, options_of
from radt.listeners.registry import check_options
from radt.model import ListenerChoice
from radt.procfs import is_shortage

log = logging.getLogger(__name__)

MAX_FAILURES = 3
#: Number of successful readings after which deaths of the worker are forgiven (`ReadingMark`).
_PROVEN = 100
#: Number of intervals that a reading may take (at least `CollectorSettings.hang_s`).
HANG_INTERVALS = 10


class SamplerThread(threading.Thread):
    """A thread with an instance of the listener. ``busy_since_ns`` is 0 between readings."""

    def __init__(self, name: str, work: Callable[[SamplerThread], None]) -> None:
        super().__init__(target=work, args=(self,), name=f"listener-{name}", daemon=True)
        self.listener: Listener | None = None
        self.busy_since_ns = 0
        self.abandoned = False


class Sampler:
    """Reads a listener at one interval and with the same options for all runs that request it.

    Args:
        kind: The listener's class.
        choice: The interval and the options.
        table: Processes of the runs.
        mark: Mark that is set during readings.
        hang_s: Minimum time after which a reading counts as hanging.
        hung: Abandoned threads of this listener, including those of its other samplers: a device
            that never responds must not cost every later run three more.
    """

    def __init__(
        self,
        kind: type[Listener],
        choice: ListenerChoice,
        table: ProcessTable,
        mark: ReadingMark,
        hang_s: float,
        hung: list[threading.Thread],
    ) -> None:
        self.name = kind.name
        self.interval_s = interval_s = choice.interval_s or kind.default_interval_s
        self._options = options_of(choice.options)
        self._kind = kind
        self._metrics = {metric.name: metric for metric in kind.metrics()}
        self._interval_ns = round(interval_s * 1e9)
        self._table = table
        self._mark = mark
        self._hang_ns = round(max(hang_s, HANG_INTERVALS * interval_s) * 1e9)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._runs: dict[str, RegisteredRun] = {}
        self._failures = 0
        self._good = 0
        self._hung = hung
        #: Whether the listener is also read when runs begin and end; the runs that have begun; and
        #: the runs that wait for their last reading.
        self._has_counters = kind.counters is not Listener.counters
        self._begun: set[str] = set()
        self._last: dict[str, tuple[RegisteredRun, threading.Event]] = {}
        self.state = ListenerState.OPENING
        self.availability = Availability(True)
        #: Set once the listener is open or has turned out not to work.
        self.settled = threading.Event()
        self._thread = self._new_thread()

    # Runs ------------------------------------------------------------------------------------

    def add(self, run: RegisteredRun) -> None:
        """Also read for this run, once it samples."""
        with self._lock:
            self._runs[run.run_id] = run
            self._wake.notify_all()

    def remove(self, run_id: str) -> bool:
        """Stop reading for this run; return True if no run remains."""
        with self._lock:
            self._runs.pop(run_id, None)
            self._begun.discard(run_id)
            return not self._runs

    def read_last(self, run: RegisteredRun) -> threading.Event | None:
        """Request a last reading of counters for a run; return an event that is set afterwards."""
        with self._lock:
            if not self._has_counters or run.run_id not in self._begun:
                return None
            if self.state is not ListenerState.RUNNING:
                return None
            _, done = self._last.setdefault(run.run_id, (run, threading.Event()))
            self._wake.notify_all()
            return done

    def wake(self) -> None:
        """Wake the thread, because a run has started."""
        with self._lock:
            self._wake.notify_all()

    def stop(self) -> None:
        """Tell the thread to end, which closes the listener; return at once."""
        with self._lock:
            if self.state.is_open:
                self.state = ListenerState.ENDED
            self._wake.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # Health ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Replace a thread that hangs or has died. Called about every second."""
        with self._lock:
            thread = self._thread
            if not self.state.is_open:
                return
            since_ns = thread.busy_since_ns  # read once: the thread sets it to 0 without the lock
            busy_ns = time.monotonic_ns() - since_ns if since_ns else 0
            if busy_ns > self._hang_ns:
                reason = f"did not return for {busy_ns / 1e9:.1f} s"
                self._hung.append(thread)
            elif not thread.is_alive():
                reason = "its thread died"
            else:
                return
            thread.abandoned = True
            if self._still_hung() >= MAX_FAILURES:
                self._failures = MAX_FAILURES
        if self._failed(reason):
            self._thread = self._new_thread()

    def _still_hung(self) -> int:
        self._hung[:] = [thread for thread in self._hung if thread.is_alive()]
        return len(self._hung)

    def _failed(self, reason: str) -> bool:
        """Count a failure and notify the runs; return whether to retry."""
        with self._lock:
            self._failures += 1
            runs = list(self._runs.values())
            again = self._failures < MAX_FAILURES
            if not again:
                self.state = ListenerState.DROPPED
                self.availability = Availability(False, reason)
                self.settled.set()
        log.warning("listener %s %s", self.name, reason)
        for run in runs:
            if again:
                run.note(f"listener {self.name} restarted", reason)
                run.explain(self.name, reason)
            else:
                run.dropped(self.name, f"{reason} ({MAX_FAILURES} failures)")
        return again

    # Thread ----------------------------------------------------------------------------------

    def _new_thread(self) -> SamplerThread:
        thread = SamplerThread(self.name, self._work)
        thread.start()
        return thread

    def _work(self, thread: SamplerThread) -> None:
        while not self._over(thread):
            try:
                if thread.listener is None:
                    thread.listener = self._opened(thread)
                self._sample_until_over(thread, thread.listener)
            # Third-party code: any exception, even sys.exit(), must only end the reading.
            except (Exception, SystemExit) as error:
                thread.busy_since_ns = 0
                if thread.abandoned:  # another thread has taken over and may succeed
                    break
                self._mark.idle()
                if isinstance(error, ListenerUnavailableError):
                    self._unavailable(error)
                elif is_shortage(error):
                    # This process lacks descriptors, which is not a failure of the listener.
                    with self._lock:
                        runs = list(self._runs.values())
                    for run in runs:
                        run.explain(self.name, described(error))
                else:
                    log.exception("listener %s", self.name)
                    self._close_listener(thread)
                    self._failed(f"raised {described(error)}")
                self._wait_until(thread, self._next_tick() * self._interval_ns)
        self._close_listener(thread)

    def _over(self, thread: SamplerThread) -> bool:
        return thread.abandoned or not self.state.is_open

    def _opened(self, thread: SamplerThread) -> Listener:
        thread.busy_since_ns = time.monotonic_ns()
        if self._mark.strikes >= MAX_STRIKES:
            raise ListenerUnavailableError(
                f"the collector died {MAX_STRIKES} times while it was reading",
                "Read the collector's log; radt retries after a reboot",
            )
        if (hung := self._still_hung()) >= MAX_FAILURES:
            raise ListenerUnavailableError(
                f"{hung} earlier readings have not returned",
                "Check that its device responds; the next run retries once they return",
            )
        self._mark.reading()
        availability = self._kind.probe()
        if availability.available:
            listener = self._kind()
            listener.options = self._options
            listener.interval_s = self.interval_s
            try:
                listener.open()
            except BaseException:
                self._close(listener)  # otherwise its resources would leak
                raise
        self._mark.idle()
        thread.busy_since_ns = 0
        if not availability.available:
            raise ListenerUnavailableError(availability.reason, availability.remedy)
        with self._lock:
            if self.state is ListenerState.OPENING and not thread.abandoned:
                self.state = ListenerState.RUNNING
        self.settled.set()
        return listener

    def _unavailable(self, error: ListenerUnavailableError) -> None:
        with self._lock:
            self.state = ListenerState.UNAVAILABLE
            self.availability = Availability(False, error.message, error.remedy or "")
            runs = list(self._runs.values())
        for run in runs:
            run.unavailable(self.name, error.message)
        self.settled.set()

    def _sample_until_over(self, thread: SamplerThread, listener: Listener) -> None:
        tick = self._next_tick()
        while True:
            if not self._wait_until(thread, tick * self._interval_ns):
                return
            if self._has_counters:
                self._read_counters(thread, listener)
                if time.monotonic_ns() < tick * self._interval_ns:
                    continue
            with self._lock:
                runs = [run for run in self._runs.values() if run.sampling]
            if runs:
                self._sample(thread, listener, runs)
            tick = max(tick + 1, self._next_tick())

    def _counters_due(self) -> bool:
        """Return whether a run has begun or is ending; called with the lock held."""
        return self._has_counters and bool(self._last or self._newly_begun())

    def _newly_begun(self) -> list[RegisteredRun]:
        """Return runs without a first reading of counters; called with the lock held."""
        runs = self._runs.values()
        return [run for run in runs if run.sampling and run.run_id not in self._begun]

    def _read_counters(self, thread: SamplerThread, listener: Listener) -> None:
        """Read counters for the runs that have begun and for those that are ending."""
        with self._lock:
            if not self._counters_due():
                return
            runs = self._newly_begun()
            self._begun |= {run.run_id for run in runs}
            last, self._last = self._last, {}
        runs += [run for run, _ in last.values()]
        try:
            self._sample(thread, listener, runs, counters=True)
        finally:
            for _, done in last.values():
                done.set()

    def _sample(
        self,
        thread: SamplerThread,
        listener: Listener,
        runs: Sequence[RegisteredRun],
        *,
        counters: bool = False,
    ) -> None:
        targets = [run.target(self._table.pids(run.run_id)) for run in runs]
        self._mark.reading()  # before taking the time, because it may wait
        at_ns = thread.busy_since_ns = time.monotonic_ns()
        readings = list((listener.counters if counters else listener.sample)(targets))
        took_ns = time.monotonic_ns() - at_ns
        self._mark.idle()
        thread.busy_since_ns = 0
        if thread.abandoned:
            return
        names = {reading.metric for reading in readings if isinstance(reading, Reading)}
        unknown = names - self._metrics.keys()
        if unknown:
            raise ListenerError(f"it reads {', '.join(sorted(unknown))}, not among its metrics")
        by_run = SortedReadings(readings, self._metrics)
        counted_ns = None if counters else took_ns
        for run in runs:
            run.record(self.name, self.interval_s, at_ns, counted_ns, by_run, self._metrics)
        if counters:
            return
        self._failures = 0
        self._good += 1
        if self._good == _PROVEN:
            self._mark.clear()

    def _next_tick(self) -> int:
        return time.monotonic_ns() // self._interval_ns + 1

    def _wait_until(self, thread: SamplerThread, at_ns: int) -> bool:
        """Wait until a time or until counters are due; return False when stopped."""
        with self._lock:
            while not self._over(thread):
                left_ns = at_ns - time.monotonic_ns()
                if left_ns <= 0 or (thread.listener is not None and self._counters_due()):
                    return True
                self._wake.wait(left_ns / 1e9)
        return False

    def _close_listener(self, thread: SamplerThread) -> None:
        """Close a thread's listener. An abandoned thread does this itself if it ever returns."""
        listener, thread.listener = thread.listener, None
        if listener is not None:
            self._close(listener)

    def _close(self, listener: Listener) -> None:
        try:
            listener.close()
        except Exception:  # third-party code that is dropped anyway
            log.exception("closing listener %s", self.name)


#: How long a registration waits for its listeners to open. Without a persistence daemon, a GPU's
#: driver takes seconds to wake up.
_OPEN_TIMEOUT_S = 5.0
#: How long the end of a run waits for the last reading of its counters.
_LAST_READING_S = 1.0


class SamplerPool:
    """One sampler per listener and interval, as long as any run needs it. Thread-safe."""

    def __init__(self, table: ProcessTable, heartbeat: Heartbeat, hang_s: float) -> None:
        self._table = table
        self._heartbeat = heartbeat
        self._hang_s = hang_s
        self._lock = threading.Lock()
        self._samplers: dict[ListenerChoice, Sampler] = {}
        self._hung: dict[str, list[threading.Thread]] = {}

    def subscribe(self, run: RegisteredRun) -> list[str]:
        """Start the listeners that a run requests; return warnings about those that do not work."""
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        warnings, samplers = [], []
        for choice in {choice.name: choice for choice in run.registration.listeners}.values():
            kind = _kind(choice.name)
            if kind is None:
                warnings.append(_not_read(choice.name))
                continue
            try:
                check_options(kind, choice.options)
            except UsageError as error:
                warnings.append(f"{error.message}; the listener is skipped. {error.remedy}")
                continue
            samplers.append(self._sampler(kind, choice, run))
        for sampler in samplers:
            if not sampler.settled.wait(max(0.0, deadline - time.monotonic())):
                warnings.append(f"listener {sampler.name} is still opening and will join later")
                continue
            if sampler.state is ListenerState.RUNNING:
                continue
            reason, remedy = sampler.availability.reason, sampler.availability.remedy
            run.unavailable(sampler.name, reason)
            remedy = f". {remedy}" if remedy else ""
            warnings.append(f"listener {sampler.name} is unavailable: {reason}{remedy}")
        return warnings

    def read_last(self, run: RegisteredRun) -> None:
        """Read counters as a run ends, without waiting for a slow listener."""
        deadline = time.monotonic() + _LAST_READING_S
        waited = [done for sampler in self._all() if (done := sampler.read_last(run)) is not None]
        for done in waited:
            done.wait(max(0.0, deadline - time.monotonic()))

    def unsubscribe(self, run_id: str) -> None:
        """Stop reading for a run."""
        with self._lock:
            for choice, sampler in list(self._samplers.items()):
                if sampler.remove(run_id):
                    sampler.stop()
                    del self._samplers[choice]

    def wake(self) -> None:
        """Wake all samplers: a run has started."""
        for sampler in self._all():
            sampler.wake()

    def check(self) -> None:
        """Replace listeners that hang."""
        for sampler in self._all():
            sampler.check()

    def names(self) -> tuple[str, ...]:
        """Return the listeners that are sampling."""
        return tuple(
            f"{sampler.name}@{sampler.interval_s:g}s"
            for sampler in self._all()
            if sampler.state is ListenerState.RUNNING
        )

    def close(self) -> None:
        for sampler in self._all():
            sampler.stop()
        for sampler in self._all():
            sampler.join(1.0)  # a hanging thread ends with the process

    def _all(self) -> list[Sampler]:
        with self._lock:
            return list(self._samplers.values())

    def _sampler(self, kind: type[Listener], choice: ListenerChoice, run: RegisteredRun) -> Sampler:
        """Return the sampler for a choice, with the run added."""
        interval_s = choice.interval_s or kind.default_interval_s
        resolved = replace(choice, interval_s=interval_s)
        run.expect(choice.name, interval_s)
        with self._lock:
            sampler = self._samplers.get(resolved)
            if sampler is None or not sampler.state.is_open:
                # A listener that was dropped is retried for a new run.
                sampler = self._samplers[resolved] = Sampler(
                    kind,
                    resolved,
                    self._table,
                    self._heartbeat.mark(choice.name),
                    self._hang_s,
                    self._hung.setdefault(choice.name, []),
                )
            sampler.add(run)
        return sampler


def _kind(name: str) -> type[Listener] | None:
    """Return a listener's class, even if it was installed while the collector was running."""
    known = registry.load()
    if name in known.listeners or name in known.profilers:
        return known.listeners.get(name)
    return registry.reload().listeners.get(name)


def _not_read(name: str) -> str:
    if name in registry.load().profilers:
        return f"{name} must start with the run. Run `radt SCRIPT --listeners {name}`"
    return (
        f"listener {name} is not installed in {sys.prefix}, where the collector runs; "
        "install it there and start again"
    )
