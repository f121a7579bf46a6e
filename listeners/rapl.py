"""Energy of CPU packages and their memory (RAPL), on Intel's and AMD's processors.

The kernel has a folder for each zone in ``/sys/class/powercap``: ``intel-rapl:0`` (a package),
``intel-rapl:0:1`` (a part of it), also on AMD (Documentation/power/powercap/powercap.rst).
``energy_uj`` counts microjoules and wraps after ``max_energy_range_uj``, at 200 W about every 20
minutes.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from radt.errors import ListenerUnavailableError
from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import MissingReason, Scope, SeriesKind

POWERCAP = Path("/sys/class/powercap")
_UJ_PER_J = 1e6
#: The sustained power of a package is below this.
_MOST_W = 500.0
_PACKAGE = re.compile(r"package-(?P<number>\d+.*)")
_COUNTER_FILE = "energy_uj"

#: Makes the counters readable for all users until the next boot.
OPEN_TO_ALL = f"chmod a+r {POWERCAP}/intel-rapl:*/{_COUNTER_FILE}"


@dataclass(frozen=True, slots=True)
class Zone:
    """One energy counter.

    ``domain`` is the kernel's name without the number (``package``, ``dram``, ``core``, ``uncore``,
    ``psys``), ``entity`` the domain with the number of its package (``package-0``, ``dram-0``).
    """

    folder: Path
    domain: str
    entity: str
    wraps_at_j: float | None

    @property
    def apart(self) -> bool:
        """Return whether it may be summed with others: not for parts of packages or a platform."""
        return self.domain in ("package", "dram")

    def read_j(self) -> float | MissingReason:
        """Return the counter in joules, or why there is none."""
        try:
            return int((self.folder / _COUNTER_FILE).read_bytes()) / _UJ_PER_J
        except OSError as error:
            return _reason(error)
        except ValueError:
            return MissingReason.LOST


@dataclass(slots=True)
class Meter:
    """Computes the growth of a counter since it was last read."""

    wraps_at: float | None = None
    _previous: float | None = None

    def grown(self, value: float) -> float:
        """Return the increase since the previous call, 0 at the first.

        Wraps and resets are distinguished as in `radt.store.counters.increases`.
        """
        previous, self._previous = self._previous, value
        if previous is None:
            return 0.0
        if value >= previous:
            return value - previous
        if self.wraps_at is not None and 0 <= value + self.wraps_at - previous < self.wraps_at / 2:
            return value + self.wraps_at - previous
        return max(0.0, value)


@dataclass(slots=True)
class ZoneReader:
    """Reads zones. A counter that is always 0 is invalid, as in virtual machines."""

    zones: tuple[Zone, ...]
    _alive: set[str] = field(default_factory=set)

    def check_interval(self, interval_s: float) -> None:
        """Check that no counter can wrap unnoticed between two readings.

        Growth by half of the range or more cannot be distinguished from a reset.

        Raises:
            ListenerUnavailableError: The interval is too long.
        """
        ranges = (zone.wraps_at_j for zone, value in self.read() if isinstance(value, float))
        longest_s = min((range_j / 2 / _MOST_W for range_j in ranges if range_j), default=math.inf)
        if interval_s > longest_s:
            raise ListenerUnavailableError(
                f"processors' energy counters may wrap unnoticed within {interval_s:g} s",
                f"Choose an interval of {math.floor(longest_s)} s at most",
            )

    def read(self) -> Iterator[tuple[Zone, float | MissingReason]]:
        """Yield each zone with its counter in joules."""
        for zone in self.zones:
            value = zone.read_j()
            if not isinstance(value, MissingReason):
                if value:
                    self._alive.add(zone.entity)
                elif zone.entity not in self._alive:
                    value = MissingReason.UNSUPPORTED
            yield zone, value


def zones(root: Path) -> tuple[Zone, ...]:
    """Return all zones below a powercap folder, each once, by entity.

    A package may appear twice, through registers (``intel-rapl``) and memory (``intel-rapl-mmio``);
    the registers count, as only they exist on all processors.
    """
    by_entity: dict[str, Zone] = {}
    for folder in sorted(root.glob("intel-rapl*:*"), key=lambda path: ("mmio" in path.name, path)):
        if (zone := _zone(folder)) is not None:
            by_entity.setdefault(zone.entity, zone)
    return tuple(by_entity[entity] for entity in sorted(by_entity))


def probe_energy(root: Path) -> Availability:
    """Return whether a processor's energy can be read."""
    readings = [zone.read_j() for zone in zones(root) if zone.apart]
    if not readings:
        return Availability(
            False,
            f"no energy counters in {root}",
            "On a machine of your own: modprobe intel_rapl_msr. Most virtual machines and "
            "containers have none",
        )
    if any(not isinstance(reading, MissingReason) and reading for reading in readings):
        return Availability(True)
    if MissingReason.PERMISSION in readings:
        return Availability(
            False,
            f"only root may read {root}/*/{_COUNTER_FILE}",
            f"As root: {OPEN_TO_ALL} (until the next boot; a udev rule makes it last). Then every "
            "user can observe others' computations by their energy (CVE-2020-8694): only where "
            "all users are trusted",
        )
    return Availability(
        False, "the energy counters stand still", "The hypervisor does not pass them on"
    )


def _zone(folder: Path) -> Zone | None:
    try:
        name = (folder / "name").read_text().strip()
        wraps_at_j = _range_j(folder)
        if not (folder / _COUNTER_FILE).exists():
            return None
        package = _PACKAGE.fullmatch(name)
        if package is not None:
            return Zone(folder, "package", name, wraps_at_j)
        # The name of a part has no number; its number is that of its package.
        parent = folder.with_name(folder.name.rpartition(":")[0]) / "name"
        package = _PACKAGE.fullmatch(parent.read_text().strip()) if parent.exists() else None
        entity = f"{name}-{package['number']}" if package is not None else name
    except OSError:  # it has just disappeared
        return None
    return Zone(folder, name, entity, wraps_at_j)


def _range_j(folder: Path) -> float | None:
    try:
        return int((folder / "max_energy_range_uj").read_bytes()) / _UJ_PER_J or None
    except (OSError, ValueError):
        return None


def _reason(error: OSError) -> MissingReason:
    if error.errno in (errno.EACCES, errno.EPERM):
        return MissingReason.PERMISSION
    if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL):
        return MissingReason.UNSUPPORTED
    return MissingReason.LOST


_ENERGY = "cpu.energy"
_DOMAIN_ENERGY = "cpu.domain.energy"
_METHOD = "RAPL counter of the whole machine, whoever uses it"
_METRICS = (
    Metric(
        *(_ENERGY, "J", Scope.HOST, SeriesKind.COUNTER),
        description="of each CPU package and of its memory; these may be summed",
        method=_METHOD,
    ),
    Metric(
        *(_DOMAIN_ENERGY, "J", Scope.HOST, SeriesKind.COUNTER),
        description="of parts of packages (core, uncore) and of the platform (psys)",
        method=f"{_METHOD}; part or whole of others, never to be summed with them",
    ),
)


class RaplListener(Listener):
    """Energy of CPU packages and memory."""

    name: ClassVar[str] = "rapl"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    by_default: ClassVar[bool] = True
    accepts: ClassVar[Mapping[str, str]] = {
        "domains": "also cores, uncore and platform, which overlap with the packages"
    }

    #: The kernel's folder of zones.
    root: ClassVar[Path] = POWERCAP

    def __init__(self) -> None:
        self._reader = ZoneReader(())

    @classmethod
    def probe(cls) -> Availability:
        return probe_energy(cls.root)

    def open(self) -> None:
        with_parts = "domains" in self.options
        self._reader = ZoneReader(
            tuple(zone for zone in zones(self.root) if zone.apart or with_parts)
        )
        self._reader.check_interval(self.interval_s)

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:  # noqa: ARG002
        for zone, value in self._reader.read():
            metric = _ENERGY if zone.apart else _DOMAIN_ENERGY
            yield Reading(metric, value, zone.entity, wraps_at=zone.wraps_at_j)

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading]:
        return self.sample(targets)
