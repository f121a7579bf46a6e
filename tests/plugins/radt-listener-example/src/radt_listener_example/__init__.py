"""A listener for radt in a package of its own: copy it and change it.

It reads two things that radt does not read by itself: the pressure that the kernel reports for CPU,
memory and I/O (https://docs.kernel.org/accounting/psi.html), and how many files the run's processes
have open. Together they show each kind of value: of the machine and of a run, a counter and a
gauge, one that is missing with its reason, and one that an option switches on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import MissingReason, Scope, SeriesKind

_PRESSURE = Path("/proc/pressure")
_RESOURCES = ("cpu", "memory", "io")

# What users see: OpenTelemetry's style of names, SI units, and how a value comes about where its
# name does not say so. A counter is read raw; charts and reports make rates of it.
_STALLED = Metric(
    "system.pressure.stalled",
    "s",
    Scope.HOST,
    SeriesKind.COUNTER,
    description="time in which some task waited for the resource",
    method="total of the line some in /proc/pressure, since boot",
)
_SHARE = Metric(
    "system.pressure.share",
    "1",
    Scope.HOST,
    description="option share; share of time in which some task waited",
    method="avg10 of the line some in /proc/pressure: the kernel's mean of 10 s",
)
_FILES = Metric(
    "process.files",
    "1",
    Scope.PROCESS,
    description="open files and sockets of the run's processes",
)


class PressureListener(Listener):
    """Waiting for CPU, memory and disks, and open files."""

    #: As in pyproject.toml.
    name: ClassVar[str] = "pressure"
    #: What may follow the name in a Listeners column (pressure:share), and what it does.
    accepts: ClassVar[dict[str, str]] = {"share": "also the kernel's own mean of 10 s"}
    default_interval_s: ClassVar[float] = 2.0

    @classmethod
    def probe(cls) -> Availability:
        """Asked before every start, also where nothing is sampled: quick, and never raises."""
        if not (_PRESSURE / "cpu").exists():
            return Availability(
                False,
                "this kernel has no pressure information",
                "Boot it with psi=1, where it is 4.20 or later",
            )
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        """Everything that `sample` may yield; anything else is an error."""
        return (_STALLED, _SHARE, _FILES)

    def open(self) -> None:
        """Once, before the first sample: what is dear is done here. Options are known."""
        self._shares = "share" in self.options

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        """At each instant, once for all runs that want it: what they share is read once."""
        for resource in _RESOURCES:
            yield from self._pressure(resource)
        for target in targets:
            # A process-scoped value says whose it is.
            yield Reading(_FILES.name, _open_files(target.pids), run_id=target.run_id)

    def _pressure(self, resource: str) -> Iterator[Reading]:
        metrics = (_STALLED, _SHARE) if self._shares else (_STALLED,)
        try:
            line = (_PRESSURE / resource).read_text().splitlines()[0]
            fields = dict(word.split("=") for word in line.split()[1:])
            values: Sequence[float | MissingReason] = (
                float(fields["total"]) / 1e6,  # µs
                float(fields["avg10"]) / 100,  # percent
            )
        except PermissionError:
            # A missing value is never 0 or -1, but the reason why there is none.
            values = (MissingReason.PERMISSION, MissingReason.PERMISSION)
        except OSError:
            values = (MissingReason.UNSUPPORTED, MissingReason.UNSUPPORTED)
        for metric, value in zip(metrics, values, strict=False):
            # The entity tells series of one metric apart.
            yield Reading(metric.name, value, entity=resource)


def _open_files(pids: Sequence[int]) -> float | MissingReason:
    """What the run's processes have open now; one that has just ended has nothing."""
    count = 0
    for pid in pids:
        try:
            count += len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            return MissingReason.PERMISSION  # what the others have is not the run's total
        except OSError:
            continue
    return float(count)
