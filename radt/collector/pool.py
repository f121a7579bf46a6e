"""The samplers in use: one for each listener and interval, however many runs want it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from radt.collector.heartbeat import Heartbeat
from radt.collector.processes import ProcessTable
from radt.collector.runs import ActiveRun
from radt.collector.sampling import Sampler, SamplerState
from radt.errors import UsageError
from radt.listeners import registry
from radt.listeners.api import Listener
from radt.listeners.registry import check_options
from radt.model import ListenerChoice

log = logging.getLogger(__name__)

#: How long a registration waits for its listeners to open. Without a persistence daemon, a GPU's
#: driver takes seconds to wake up.
_OPEN_TIMEOUT_S = 5.0


class SamplerPool:
    """Starts samplers when a run wants them and stops them when none does. Thread-safe."""

    def __init__(self, table: ProcessTable, heartbeat: Heartbeat, hang_s: float) -> None:
        self._table = table
        self._heartbeat = heartbeat
        self._hang_s = hang_s
        self._lock = threading.Lock()
        self._samplers: dict[ListenerChoice, Sampler] = {}
        self._hung: dict[str, list[threading.Thread]] = {}

    def subscribe(self, run: ActiveRun) -> list[str]:
        """Read for this run what it asks for; return warnings about what will not be read."""
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        warnings, samplers = [], []
        for choice in {choice.name: choice for choice in run.registration.listeners}.values():
            kind = registry.load().listeners.get(choice.name)
            if kind is None:
                warnings.append(_not_read(choice.name))
                continue
            try:
                check_options(kind, choice.options)
            except UsageError as error:
                warnings.append(f"{error.message}: it is not read. {error.remedy}")
                continue
            samplers.append(self._sampler(kind, choice, run))
        for sampler in samplers:
            if not sampler.settled.wait(max(0.0, deadline - time.monotonic())):
                warnings.append(f"listener {sampler.name} is slow to open; it joins when it has")
                continue
            if sampler.state is SamplerState.READY:
                continue
            answer = sampler.availability
            run.unavailable(sampler.name, answer.reason)
            remedy = f". {answer.remedy}" if answer.remedy else ""
            warnings.append(f"listener {sampler.name} is unavailable: {answer.reason}{remedy}")
        return warnings

    def unsubscribe(self, run_id: str) -> None:
        """Read nothing for this run any longer."""
        with self._lock:
            for choice, sampler in list(self._samplers.items()):
                if sampler.remove(run_id):
                    sampler.stop()
                    del self._samplers[choice]

    def wake(self) -> None:
        """A run has started."""
        for sampler in self._all():
            sampler.wake()

    def check(self) -> None:
        """Take over from listeners that hang."""
        for sampler in self._all():
            sampler.check()

    def names(self) -> tuple[str, ...]:
        """Listeners that are sampling."""
        return tuple(
            f"{sampler.name}@{sampler.interval_s:g}s"
            for sampler in self._all()
            if sampler.state is SamplerState.READY
        )

    def close(self) -> None:
        for sampler in self._all():
            sampler.stop()
        for sampler in self._all():
            sampler.join(1.0)  # one that hangs dies with the process

    def _all(self) -> list[Sampler]:
        with self._lock:
            return list(self._samplers.values())

    def _sampler(self, kind: type[Listener], choice: ListenerChoice, run: ActiveRun) -> Sampler:
        """The sampler for a choice, subscribed."""
        interval_s = choice.interval_s or kind.default_interval_s
        resolved = replace(choice, interval_s=interval_s)
        run.expect(choice.name, interval_s)
        with self._lock:
            sampler = self._samplers.get(resolved)
            if sampler is None or sampler.state not in (SamplerState.OPENING, SamplerState.READY):
                # One that was dropped is tried anew for a new run.
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


def _not_read(name: str) -> str:
    if name in registry.load().profilers:
        return f"{name} goes with a run from its start: use radt SCRIPT --listeners {name}"
    return f"listener {name} is not installed (radt listeners)"
