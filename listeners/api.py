"""The interface of listeners: read this before writing one.

A listener reports whether it works here (`probe`) and what it measures (`metrics`), and reads
everything once (`sample`). It has nothing to do with files, databases, threads or schedules: the
collector calls ``sample`` at regular times, counts received and missed samples, and assigns each
reading to the runs it belongs to. A `Profiler` does not sample: it accompanies one run, by a prefix
of its command or from inside its process.

Register the class under the entry-point group ``radt.listeners``, like the built-in ones.
``tests/plugins/radt-listener-example`` is a complete package.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from radt.errors import described
from radt.model import ListenerChoice, MissingReason, Scope, SeriesKind

#: Seconds that the list of working listeners is cached: waking a GPU's driver can take seconds.
_DEFAULTS_S = 60.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of value that a listener reads.

    ``name`` follows OpenTelemetry if it defines one (``system.cpu.utilization``), else the same
    style (``gpu.sm.active``). ``unit`` is UCUM with SI base units (``By``, ``W``, ``J``, ``Hz``,
    ``Cel``, ``By/s``; ``1`` for a ratio 0-1, which charts show in %; ``cores`` for CPU time per
    wall-clock time; for a gauge that counts things, their name in braces, ``{threads}``).

    A ``COUNTER`` only grows, and is recorded raw: readers take differences
    (`radt.store.counters`), which survive a reset, and also a wrap if ``wraps_at`` is the value
    at which it wraps (in the metric's unit).

    ``method`` says how a value is obtained, unless the name does, and is stored with the series.
    ``estimated`` marks a value that is not measured but apportioned by a rule, which ``method``
    describes. ``regular`` is False if some samples lack the value, because reading it is expensive.
    """

    name: str
    unit: str
    scope: Scope
    kind: SeriesKind = SeriesKind.GAUGE
    description: str = ""
    method: str = ""
    estimated: bool = False
    wraps_at: float | None = None
    regular: bool = True


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a listener works on this machine; if not, the reason and the remedy."""

    available: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A run that gets this listener's values.

    ``gpus`` are the run's devices: NVML indices, UUIDs of GPUs or UUIDs of MIG devices (empty for
    a CPU run; `radt.listeners.nvidia.DeviceHandles` resolves them); ``pids`` are all live processes
    of the run at this instant; ``profiler`` is the profiler of the run, if any.
    """

    run_id: str
    gpus: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    profiler: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one metric at this instant.

    ``entity`` names the subject within the scope (``gpu0``, ``gpu0/gi1``, ``sda``; empty if there
    is only one). ``run_id`` is set for process-scoped values only. ``value`` is a number, or the
    reason why there is none. ``gpu`` is the device as `Target.gpus` names it, for GPU and MIG
    scopes: the collector assigns the reading to the runs on that device, so yield a card's value
    once for each name that targets have for it.

    ``method`` and ``wraps_at`` override the metric's if they depend on the device; a series' first
    reading counts. ``at_ns`` is the time of the value (monotonic), if that is not the start of
    `Listener.sample`.
    """

    metric: str
    value: float | MissingReason
    entity: str = ""
    run_id: str | None = None
    gpu: str | None = None
    method: str = ""
    at_ns: int | None = None
    wraps_at: float | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event, recorded as a marker.

    It belongs to the run ``run_id`` if set, to the runs on the device ``gpu`` if set, otherwise to
    all runs that the listener samples.
    """

    name: str
    detail: str = ""
    run_id: str | None = None
    gpu: str | None = None
    at_ns: int | None = None


class Source(ABC):
    """Base class of listeners and profilers: the names that a Listeners column accepts."""

    #: The name for the Listeners column.
    name: ClassVar[str]
    #: The options after the name (``top:cores``) with their meaning; ``word`` or ``word=VALUE``.
    accepts: ClassVar[Mapping[str, str]] = {}
    #: All metrics that it may read.
    reads: ClassVar[Sequence[Metric]] = ()

    @classmethod
    @abstractmethod
    def probe(cls) -> Availability:
        """Return whether it works here. Must not raise, and must take well under a second."""

    @classmethod  # noqa: B027 - most options have no value
    def check_option(cls, word: str, value: str | None) -> None:
        """Check an option of `accepts` when an experiment file is read.

        Raises:
            ValueError: The value is not valid; the message says what is expected.
        """

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        """Return all metrics that it may read: `reads`, unless they depend on the machine."""
        return cls.reads


class Listener(Source):
    """A source of hardware samples. One instance serves all runs of the machine.

    ``options`` are the user's: word to value, None for a word alone; ``interval_s`` is the time
    between samples. Both are set before `open`.
    """

    #: Default interval between samples, in seconds.
    default_interval_s: ClassVar[float] = 1.0
    #: True if a run that names no listeners gets this one, provided it is available.
    by_default: ClassVar[bool] = False

    options: Mapping[str, str | None] = {}
    interval_s: float = 1.0

    def open(self) -> None:
        """Prepare to sample. May raise; the collector then retries, and finally drops it."""

    @abstractmethod
    def sample(self, targets: Sequence[Target]) -> Iterable[Reading | Occurrence]:
        """Read everything once, for all targets, as fast as possible."""

    def counters(self, targets: Sequence[Target]) -> Iterable[Reading | Occurrence]:  # noqa: ARG002
        """Read counters whose growth over a whole run matters, such as energy.

        Called when a run begins and when it ends, between two calls of `sample`, whose values it
        must not affect. Override it only for such counters. Events just before a run's end can be
        reported only here.
        """
        return ()

    def close(self) -> None:
        """Release everything that `open` acquired, even if `open` raised."""


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """The run that a profiler accompanies.

    All files that the profiler writes into ``reports`` (an existing absolute folder) become
    artifacts of the run, below ``profiles/``. ``label`` is safe in a file name: experiment,
    workload and letter. ``options`` as in `Listener`.
    """

    run_id: str
    label: str
    reports: Path
    options: Mapping[str, str | None] = field(default_factory=dict)


class Profiler(Source):
    """Accompanies one run: a prefix of its command, variables for its process, or both."""

    #: True if it slows the run down so much that comparisons exclude the run by default.
    disturbs: ClassVar[bool] = True
    #: True if it uses the GPU's performance counters, so that other readers must pause.
    takes_gpu_counters: ClassVar[bool] = False

    def prefix(self, run: ProfiledRun) -> Sequence[str]:  # noqa: ARG002
        """Return the words before the run's command."""
        return ()

    def environment(self, run: ProfiledRun) -> Mapping[str, str]:  # noqa: ARG002
        """Return variables for the run's processes."""
        return {}

    def notice(self, run: ProfiledRun) -> str:  # noqa: ARG002
        """Return an instruction for the user when the run starts; empty for none."""
        return ""


def probed(kind: type[Source]) -> Availability:
    """Return the result of a probe; if a plug-in's raises, it counts as unavailable."""
    try:
        return kind.probe()
    except Exception as error:  # noqa: BLE001 - third-party code that breaks its contract
        return Availability(False, f"its probe raised {described(error)}")


@dataclass(frozen=True)
class Registry:
    """The installed listeners and profilers by name, and the plug-ins that could not be loaded."""

    listeners: Mapping[str, type[Listener]]
    profilers: Mapping[str, type[Profiler]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    _looked: list[tuple[float, tuple[ListenerChoice, ...]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def defaults(self) -> tuple[ListenerChoice, ...]:
        """Return the listeners of a run that names none: the default ones that work here.

        They are probed again after a minute, because a collector runs for days, in which drivers
        are loaded and permissions change.
        """
        now_s = time.monotonic()
        if not self._looked or now_s - self._looked[0][0] > _DEFAULTS_S:
            defaults = tuple(
                ListenerChoice(name)
                for name, kind in sorted(self.listeners.items())
                if kind.by_default and probed(kind).available
            )
            self._looked[:] = [(now_s, defaults)]
        return self._looked[0][1]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names that a Listeners column may contain."""
        return (*self.listeners, *self.profilers)

    def find(self, name: str) -> type[Source] | None:
        """Return the listener or profiler with this name."""
        return self.listeners.get(name) or self.profilers.get(name)


def options_of(texts: Iterable[str]) -> dict[str, str | None]:
    """Return options such as ``("cores", "epochs=2-3")`` as words and values."""
    parts = (text.partition("=") for text in texts)
    return {word: value if equals else None for word, equals, value in parts}
