"""Activity of an NVIDIA GPU's units through NVML's GPM: Hopper and later, without a DCGM daemon.

GPM compares two samples of the hardware's counters; a value is a mean over the time between them.
The driver updates its counters every 100 ms, so samples must be further apart
(https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html): at shorter intervals, a
sample is kept until that time has passed, and only then there is a value.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from radt.devices.nvml import Nvml
from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.nvidia import DeviceHandles, GpuHandle, Named, missing, probe_nvml
from radt.model import MissingReason, Scope

log = logging.getLogger(__name__)

_MIN_WINDOW_NS = 100_000_000
#: A window longer than this many intervals plus the minimum began before the runs that would get
#: its value.
_STALE_INTERVALS = 3
_PERCENT = 0.01
_MIB = 2.0**20
_MIG_PREFIX = "MIG-"
#: A card's index, and the id of a GPU instance.
_Key = tuple[int, int | None]

_WINDOW = "mean over the time since the previous reading, at least 100 ms (NVML GPM)"
_SHARED = "; of the whole GPU instance: compute instances that share it cannot be told apart"


@dataclass(frozen=True, slots=True)
class _Measure:
    """One of GPM's metrics: NVML's number for it, and the factor for its values.

    ``per_instance`` marks metrics that MIG instances have; links only exist for the whole card.
    """

    name: str
    metric_id: int
    unit: str
    factor: float
    description: str
    per_instance: bool = True

    def on_card(self) -> Metric:
        name = f"gpu.{self.name}"
        return Metric(name, self.unit, Scope.GPU, description=self.description, method=_WINDOW)

    def on_instance(self) -> Metric:
        name, method = f"gpu.mig.{self.name}", _WINDOW + _SHARED
        return Metric(name, self.unit, Scope.MIG, description=self.description, method=method)


def _share(name: str, metric_id: int, description: str) -> _Measure:
    """Return a ratio, which GPM returns in percent; values above 100 are not clipped."""
    return _Measure(name, metric_id, "1", _PERCENT, description)


def _rate(name: str, metric_id: int, description: str) -> _Measure:
    """Return a rate, which GPM returns in MiB/s."""
    return _Measure(name, metric_id, "By/s", _MIB, description, per_instance=False)


#: NVML_GPM_METRIC_* of nvml.h.
MEASURES = (
    _share("graphics.active", 1, "time with any compute or graphics at work"),
    _share("sm.active", 2, "SMs with at least one warp, mean of all"),
    _share("sm.occupancy", 3, "resident warps of those that would fit"),
    _share("int.active", 4, "time that SMs do integer operations"),
    _share("tensor.active", 5, "time that any tensor cores work"),
    _share("dram.active", 10, "bandwidth of the highest possible"),
    _share("fp64.active", 11, "time in FP64 units, not tensor cores"),
    _share("fp32.active", 12, "time in FP32 units, not tensor cores"),
    _share("fp16.active", 13, "time in FP16 units, not tensor cores"),
    _rate("pcie.tx", 20, "from the GPU"),
    _rate("pcie.rx", 21, "to the GPU"),
    _rate("nvlink.rx", 60, "all links together"),
    _rate("nvlink.tx", 61, "all links together"),
)
_OF_INSTANCES = tuple(measure for measure in MEASURES if measure.per_instance)


@dataclass(frozen=True, slots=True)
class _Place:
    """The subject of a GPM sample: a card, or one of its GPU instances."""

    card: GpuHandle
    gpu_id: int | None = None

    @classmethod
    def of(cls, named: Named) -> _Place:
        return cls(named.card, None if named.mig is None else named.mig.gpu_id)

    @property
    def key(self) -> _Key:
        return self.card.index, self.gpu_id

    @property
    def entity(self) -> str:
        return self.card.entity if self.gpu_id is None else f"{self.card.entity}/gi{self.gpu_id}"

    @property
    def measures(self) -> tuple[_Measure, ...]:
        return MEASURES if self.gpu_id is None else _OF_INSTANCES

    @property
    def prefix(self) -> str:
        return "gpu." if self.gpu_id is None else "gpu.mig."


class _Window:
    """The two samples of a place, used alternately."""

    def __init__(self, nvml: Any, place: _Place) -> None:
        self._nvml = nvml
        self.place = place
        self._older = nvml.nvmlGpmSampleAlloc()
        self._newer = nvml.nvmlGpmSampleAlloc()
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(place.measures)
        for number, measure in enumerate(place.measures):
            self._request.metrics[number].metricId = measure.metric_id
        #: Time of the older sample; 0 if there is none.
        self._since_ns = 0
        self._names: frozenset[str] = frozenset()
        self.at_ns = 0

    def under(self, names: Iterable[str]) -> None:
        """Set the place's device names; a recreated instance has another name, and starts over."""
        before, self._names = self._names, frozenset(names)
        if before.isdisjoint(self._names):
            self._since_ns = 0

    def read(self, stale_ns: int) -> list[float | MissingReason]:
        """Return the values of the place's measures up to now (`at_ns`); none if it is too early.

        Raises:
            NVMLError: There is no value now; the next window starts over.
        """
        now_ns = time.monotonic_ns()
        if self._since_ns and now_ns - self._since_ns <= _MIN_WINDOW_NS:
            return []
        since_ns, self._since_ns = self._since_ns, 0
        self._take(self._newer)
        self.at_ns = now_ns
        self._older, self._newer = self._newer, self._older
        # Taken after the call, because a slow sample is taken later than requested.
        self._since_ns = time.monotonic_ns()
        if not since_ns or now_ns - since_ns > stale_ns:
            return []
        return self._compare(self._newer, self._older)

    def _take(self, sample: Any) -> None:
        handle, gpu_id = self.place.card.handle, self.place.gpu_id
        if gpu_id is None:
            self._nvml.nvmlGpmSampleGet(handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, gpu_id, sample)

    def _compare(self, first: Any, second: Any) -> list[float | MissingReason]:
        request, measures = self._request, self.place.measures
        request.sample1, request.sample2 = first, second
        self._nvml.nvmlGpmMetricsGet(request)
        return [
            self._value(request.metrics[number], measure) for number, measure in enumerate(measures)
        ]

    def _value(self, answer: Any, measure: _Measure) -> float | MissingReason:
        if answer.nvmlReturn != self._nvml.NVML_SUCCESS:
            return missing(self._nvml, self._nvml.NVMLError(answer.nvmlReturn))
        return float(answer.value) * measure.factor

    def free(self) -> None:
        """Free the samples."""
        for sample in (self._older, self._newer):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError as error:  # NVML no longer works: nothing is left to free
                log.debug("freeing a GPM sample of %s: %s", self.place.entity, error)


class GpmListener(Listener):
    """Activity of NVIDIA GPUs and MIG instances, Hopper and later."""

    name: ClassVar[str] = "gpm"
    reads: ClassVar[Sequence[Metric]] = (
        *(measure.on_card() for measure in MEASURES),
        *(measure.on_instance() for measure in _OF_INSTANCES),
    )
    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._devices = DeviceHandles()
        self._windows: dict[_Key, _Window] = {}
        self._supported: dict[int, bool] = {}

    @classmethod
    def probe(cls) -> Availability:
        try:
            with Nvml() as nvml:  # NVML counts its users, so it is not initialised again below
                answer = probe_nvml(cls.name)
                return _probe_cards(nvml) if answer.available else answer
        except Exception:  # noqa: BLE001 - pynvml.NVMLError, or OSError from a bad library
            return probe_nvml(cls.name)

    def open(self) -> None:
        self._devices.open()

    def close(self) -> None:
        self._keep({})
        self._supported.clear()
        self._devices.close()

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        named = {name: _Place.of(device) for name, device in devices.items() if device is not None}
        places = {place.key: place for place in named.values()}
        self._keep(places)
        read = {
            key: list(self._read(place, [name for name in named if named[name].key == key]))
            for key, place in places.items()
        }
        for name in devices:
            if name not in named:
                last = self._devices.last(name)
                yield from _unknown(name, None if last is None else _Place.of(last))
                continue
            for reading in read[named[name].key]:
                yield replace(reading, gpu=name)

    def _read(self, place: _Place, names: Sequence[str]) -> Iterator[Reading]:
        nvml, at_ns = self._devices.nvml, None
        values: Sequence[float | MissingReason]
        try:
            if self._has_gpm(place.card):
                window = self._window(place)
                window.under(names)
                stale_ns = _MIN_WINDOW_NS + round(_STALE_INTERVALS * self.interval_s * 1e9)
                values = window.read(stale_ns)
                at_ns = window.at_ns
            else:
                values = _all_missing(place, MissingReason.UNSUPPORTED)
        except nvml.NVMLError as error:
            reason = missing(nvml, error)
            values = _all_missing(place, reason)
            if reason is MissingReason.LOST:
                # After a reset, or when recreated, it has another handle.
                self._devices.forget(place.card)
        # There are no values if it is too early.
        for measure, value in zip(place.measures, values, strict=bool(values)):
            yield Reading(place.prefix + measure.name, value, place.entity, at_ns=at_ns)

    def _window(self, place: _Place) -> _Window:
        window = self._windows.get(place.key)
        if window is not None and window.place.card is not place.card:  # lost and back again
            self._windows.pop(place.key).free()
            window = None
        if window is None:
            window = self._windows[place.key] = _Window(self._devices.nvml, place)
        return window

    def _keep(self, places: Collection[_Key]) -> None:
        """Free the samples of places without a run."""
        for key in self._windows.keys() - places:
            self._windows.pop(key).free()

    def _has_gpm(self, card: GpuHandle) -> bool:
        if card.index not in self._supported:
            self._supported[card.index] = _has_gpm(self._devices.nvml, card.handle)
        return self._supported[card.index]


def _all_missing(place: _Place, reason: MissingReason) -> list[float | MissingReason]:
    return [reason] * len(place.measures)


def _unknown(name: str, last: _Place | None) -> Iterator[Reading]:
    """Yield lost values of an absent device, under its last known entity."""
    on_instance = name.startswith(_MIG_PREFIX)
    entity = name if last is None else last.entity
    for measure in _OF_INSTANCES if on_instance else MEASURES:
        metric = measure.on_instance() if on_instance else measure.on_card()
        yield Reading(metric.name, MissingReason.LOST, entity, gpu=name)


def _has_gpm(nvml: Any, handle: Any) -> bool:
    return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


def _probe_cards(nvml: Any) -> Availability:
    """Return whether any card supports GPM; otherwise, the last card's problem."""
    names: list[str] = []
    failure = ""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if _has_gpm(nvml, handle):
                return Availability(True)
            names.append(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError_FunctionNotFound:
            return Availability(
                False, "NVIDIA's driver is too old for GPM", "Update it to 525 or later"
            )
        except nvml.NVMLError as error:
            failure = f"GPU {index}: {error}"
    if failure:
        return Availability(False, failure, "Run nvidia-smi for details")
    kinds = ", ".join(dict.fromkeys(names))
    return Availability(
        False,
        f"GPM needs Hopper or later; this machine has {kinds}",
        "Use dcgm for the activity of older GPUs",
    )
