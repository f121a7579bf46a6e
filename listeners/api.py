"""What a listener is: the one page to read before writing one.

A listener says whether it can work here (`probe`), what it measures (`metrics`), and reads
everything once (`sample`). It knows nothing of files, databases, threads or schedules: the
collector calls ``sample`` on its clock, counts what came and what did not, and hands each reading
to the runs it concerns. Register the class under the entry-point group ``radt.listeners``; the
built-in listeners come in through the same door.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.model import MissingReason, Scope, SeriesKind


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of value that a listener reads.

    ``name`` follows OpenTelemetry where it has one (``system.cpu.utilization``), else the same
    style (``gpu.sm.active``). ``unit`` is UCUM with SI base units (``By``, ``W``, ``J``, ``Hz``,
    ``Cel``, ``By/s``; ``1`` for a ratio 0-1; ``cores`` for CPU time per time).
    """

    name: str
    unit: str
    scope: Scope
    kind: SeriesKind = SeriesKind.GAUGE
    description: str = ""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a listener works on this machine, and if not, why and what to do."""

    available: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A run that wants this listener's values.

    ``gpus`` are the NVML UUIDs or indices of the run's devices as the user's Devices column names
    them (empty for a CPU run); ``pids`` are all live processes of the run at this instant.
    """

    run_id: str
    gpus: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one metric at this instant.

    ``entity`` names what was read within the scope (``gpu0``; empty if there is only one).
    ``run_id`` is given for process-scoped values only. ``value`` is a number or the reason why
    there is none. ``gpu`` is the device as `Target.gpus` names it, for GPU and MIG scopes: the
    collector gives the reading to the runs on that device.
    """

    metric: str
    value: float | MissingReason
    entity: str = ""
    run_id: str | None = None
    gpu: str | None = None


class Listener(ABC):
    """A source of hardware samples. One instance serves all runs of the machine."""

    #: What users write in the Listeners column.
    name: ClassVar[str]
    #: Seconds between samples unless the user says otherwise.
    default_interval_s: ClassVar[float] = 1.0

    @classmethod
    @abstractmethod
    def probe(cls) -> Availability:
        """Whether this listener works here. Must not raise, and takes well under a second."""

    @classmethod
    @abstractmethod
    def metrics(cls) -> Sequence[Metric]:
        """Everything this listener may read."""

    def open(self) -> None:  # noqa: B027 - most listeners have nothing to open
        """Get ready to sample. May raise; the collector then retries, later drops the listener."""

    @abstractmethod
    def sample(self, targets: Sequence[Target]) -> Iterable[Reading]:
        """Read everything once, for all runs that want it, as fast as possible."""

    def close(self) -> None:  # noqa: B027 - most listeners have nothing to close
        """Let go of what `open` took."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The listeners installed here, by name, and the plug-ins that could not be loaded."""

    listeners: Mapping[str, type[Listener]]
    broken: Mapping[str, str] = field(default_factory=dict)
