"""Energy of CPU packages and their memory (RAPL), on Intel's and AMD's processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.energy import POWERCAP, ZoneReader, probe_energy, zones
from radt.model import Scope, SeriesKind

_ENERGY = "cpu.energy"
_DOMAIN_ENERGY = "cpu.domain.energy"
_METHOD = "RAPL counter of the whole machine, whoever uses it"
_METRICS = (
    Metric(
        _ENERGY,
        "J",
        Scope.HOST,
        SeriesKind.COUNTER,
        "of each CPU package and of the memory behind it; these may be added up",
        _METHOD,
    ),
    Metric(
        _DOMAIN_ENERGY,
        "J",
        Scope.HOST,
        SeriesKind.COUNTER,
        "of parts of packages (core, uncore) and of the platform (psys), which holds them all",
        f"{_METHOD}; part or whole of others, never to be added to them",
    ),
)


class RaplListener(Listener):
    """CPU packages and memory."""

    name: ClassVar[str] = "rapl"
    by_default: ClassVar[bool] = True
    accepts: ClassVar[Mapping[str, str]] = {
        "domains": "also cores, uncore and platform, which overlap with the packages"
    }

    #: Where the kernel shows the zones.
    root: ClassVar[Path] = POWERCAP

    def __init__(self) -> None:
        self._reader = ZoneReader(())

    @classmethod
    def probe(cls) -> Availability:
        """Where there are energy counters and they may be read."""
        return probe_energy(cls.root)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return _METRICS

    def open(self) -> None:
        """Look which counters there are.

        Raises:
            ListenerUnavailableError: The interval is too long for them.
        """
        with_parts = "domains" in self.options
        self._reader = ZoneReader(
            tuple(zone for zone in zones(self.root) if zone.apart or with_parts)
        )
        self._reader.check_interval(self.interval_s)

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:  # noqa: ARG002
        for zone, value in self._reader.read():
            metric = _ENERGY if zone.apart else _DOMAIN_ENERGY
            yield Reading(metric, value, zone.entity, wraps_at=zone.wraps_at_j)
