"""CO2 emissions of processors and GPUs: their energy times the grid's carbon intensity."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.nvidia import DeviceHandles, GpuHandle, probe_nvml
from radt.listeners.rapl import POWERCAP, Meter, ZoneReader, probe_energy, zones
from radt.listeners.smi_card import EnergyCounters
from radt.model import MissingReason, Scope, SeriesKind

_SOURCE = "codecarbon 3.3.2"
_J_PER_KWH = 3.6e6
#: Coal alone has about 1000 g/kWh; more than twice that is probably in another unit.
_MAX_G_PER_KWH = 2000.0
_MAX_PUE = 5.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The carbon intensity of the electricity.

    ``pue`` is the power usage effectiveness: energy of the data centre over that of its computers.
    """

    g_per_kwh: float
    origin: str
    pue: float = 1.0

    @property
    def g_per_j(self) -> float:
        return self.g_per_kwh * self.pue / _J_PER_KWH

    @property
    def rule(self) -> str:
        """Return a description of the rule, for a series' method."""
        return f"energy × {self.g_per_kwh:g} g CO2e/kWh ({self.origin}) × PUE {self.pue:g}"


def grid_of(options: Mapping[str, str | None]) -> Grid:
    """Return the grid of the listener's options, where ``intensity`` overrides ``country``.

    Raises:
        ValueError: An option is not valid.
    """
    pue = pue_of(options.get("pue") or "1")
    intensity = options.get("intensity")
    if intensity is not None:
        return Grid(intensity_of(intensity), "given", pue)
    country = options.get("country")
    if country is None:
        entry, note = _table()["world"], "; no country was given"
    else:
        entry, note = country_of(country), ""
    return Grid(
        entry["g_per_kwh"], f"{entry['name']}, mean of {entry['year']}, {_SOURCE}{note}", pue
    )


def country_of(code: str | None) -> Mapping[str, Any]:
    """Return the entry of an ISO 3166 code of three letters; raise ValueError if unknown."""
    countries = _table()["countries"]
    text = (code or "").lower()
    if text in countries:
        return countries[text]  # type: ignore[no-any-return]
    by_name = {entry["name"].lower().replace(" ", "-"): key for key, entry in countries.items()}
    near = difflib.get_close_matches(text, [*by_name, *countries], n=1)
    hint = f"; did you mean {by_name.get(near[0], near[0])}?" if near else ""
    raise ValueError(f"expected a country code of three letters, as in country=dnk{hint}")


def intensity_of(text: str | None) -> float:
    """Return grams per kilowatt-hour; raise ValueError if the number is not valid."""
    return _number(text, 0.0, _MAX_G_PER_KWH, "g CO2e per kWh, as in intensity=151.65")


def pue_of(text: str | None) -> float:
    """Return the power usage effectiveness; raise ValueError if the number is not valid."""
    return _number(text, 1.0, _MAX_PUE, "energy of the building over that of its computers")


def _number(text: str | None, least: float, most: float, meaning: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"expected a number from {least:g} to {most:g}: {meaning}")
    return value


@cache
def _table() -> Mapping[str, Any]:
    text = (files("radt.listeners") / "data" / "grid_intensity.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


log = logging.getLogger(__name__)

_CPU = "carbon.emissions.cpu"
_GPU = "carbon.emissions.gpu"
_RULE = "energy × intensity of the grid × PUE; the series says which"


def _emissions(name: str, scope: Scope, description: str) -> Metric:
    return Metric(name, "g", scope, SeriesKind.COUNTER, description, _RULE, estimated=True)


_METRICS = (
    _emissions(
        _CPU, Scope.HOST, "CO2 equivalent of CPU packages and their memory, whoever uses them"
    ),
    _emissions(_GPU, Scope.GPU, "CO2 equivalent of a whole card, whoever uses it"),
)


class CarbonListener(Listener):
    """Grams of CO2 equivalent since the first reading.

    It covers what has energy counters: not disks, fans, network or power supplies, nor memory if
    the processor has no counter of it.
    """

    name: ClassVar[str] = "carbon"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    default_interval_s: ClassVar[float] = 10.0
    accepts: ClassVar[Mapping[str, str]] = {
        "country=CODE": "the country of the grid (ISO 3166, three letters), as country=dnk",
        "intensity=NUMBER": "g CO2e per kWh, as intensity=151.65; overrides the country",
        "pue=NUMBER": "energy of the building over that of its computers; default 1",
    }

    root: ClassVar[Path] = POWERCAP

    def __init__(self) -> None:
        self._devices: DeviceHandles | None = None
        self._meters: dict[str, Meter] = {}
        self._grams: dict[str, float] = {}
        self._sampled: set[str] = set()

    @classmethod
    def probe(cls) -> Availability:
        cpu, gpu = probe_energy(cls.root), probe_nvml(cls.name)
        if cpu.available or gpu.available:
            return Availability(True)
        return Availability(
            False, f"no energy counter can be read: {cpu.reason}; {gpu.reason}", cpu.remedy
        )

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:
        {"country": country_of, "intensity": intensity_of, "pue": pue_of}[word](value)

    def open(self) -> None:
        self._grid = grid_of(self.options)
        self._reader = ZoneReader(tuple(zone for zone in zones(self.root) if zone.apart))
        self._reader.check_interval(self.interval_s)
        readings = self._reader.read()
        domains = {zone.domain for zone, value in readings if isinstance(value, float)}
        memory = "and memory" if "dram" in domains else "without memory, which has no counter"
        cpu = probe_energy(self.root)
        left_out = "" if cpu.available else f"; CPU and memory left out: {cpu.reason}"
        self._cpu_method = f"{self._grid.rule}; CPU packages {memory} (RAPL), the whole machine"
        self._gpu_method = f"{self._grid.rule}; the whole card (NVML){left_out}"
        self._devices = _opened_devices()
        if self._devices is not None:
            self._counters = EnergyCounters(self._devices.nvml)

    def close(self) -> None:
        if self._devices is not None:
            self._devices.close()
            self._devices = None

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        return self._read(targets, is_sample=True)

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading]:
        return self._read(targets, is_sample=False)

    def _read(self, targets: Sequence[Target], *, is_sample: bool) -> Iterator[Reading]:
        yield Reading(_CPU, self._cpu(), method=self._cpu_method)
        names = dict.fromkeys(gpu for target in targets for gpu in target.gpus)
        if self._devices is None:
            for name in names:
                yield Reading(_GPU, MissingReason.UNSUPPORTED, name, gpu=name)
            return
        read: dict[str, float | MissingReason] = {}
        for name, named in self._devices.find(names).items():
            if named is None:
                last = self._devices.last(name)
                entity = name if last is None else last.card.entity
                yield Reading(_GPU, MissingReason.LOST, entity, gpu=name)
                continue
            card = named.card
            if card.uuid not in read:
                read[card.uuid] = self._gpu(self._devices, card, is_sample=is_sample)
            yield Reading(_GPU, read[card.uuid], card.entity, gpu=name, method=self._gpu_method)

    def _cpu(self) -> float | MissingReason:
        """Return the grams of all packages and memories; no value unless all are readable."""
        readings = list(self._reader.read())
        values = {zone: value for zone, value in readings if isinstance(value, float)}
        reasons = [value for _, value in readings if isinstance(value, MissingReason)]
        if not values:
            return reasons[0] if reasons else MissingReason.UNSUPPORTED
        if any(reason is not MissingReason.UNSUPPORTED for reason in reasons):
            return next(r for r in reasons if r is not MissingReason.UNSUPPORTED)
        grown_j = 0.0
        for zone, value in values.items():
            meter = self._meters.setdefault(zone.entity, Meter(zone.wraps_at_j))
            grown_j += meter.grown(value)
        return self._counted("cpu", grown_j)

    def _gpu(
        self, devices: DeviceHandles, card: GpuHandle, *, is_sample: bool
    ) -> float | MissingReason:
        energy_j = self._counters.read(card)
        if isinstance(energy_j, MissingReason):
            if energy_j is MissingReason.LOST:
                devices.forget(card)  # it may come back with another handle
            return energy_j
        grown_j = self._meters.setdefault(card.uuid, Meter()).grown(energy_j)
        grams = self._counted(card.uuid, grown_j)
        if grams or not is_sample:
            return grams
        # A card always draws power, so a counter that has not moved between samples is invalid.
        is_first = card.uuid not in self._sampled
        self._sampled.add(card.uuid)
        return grams if is_first else MissingReason.UNSUPPORTED

    def _counted(self, key: str, grown_j: float) -> float:
        grams = self._grams.get(key, 0.0) + grown_j * self._grid.g_per_j
        self._grams[key] = grams
        return grams


def _opened_devices() -> DeviceHandles | None:
    """Open the NVIDIA devices; return None if there is no driver."""
    import pynvml

    devices = DeviceHandles()
    try:
        devices.open()
    except (pynvml.NVMLError, OSError) as error:
        log.info("carbon excludes GPUs: %s", error)
        return None
    return devices
