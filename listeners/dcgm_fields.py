"""DCGM's fields by number, their metrics, and the meaning of its errors.

Numbers rather than names, because DCGM 4.6 renamed constants but kept the numbers. Numbers, units
and meanings are those of dcgm_fields.h and of NVIDIA's DCGM API reference ("Field Identifiers").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from radt.listeners.api import Metric
from radt.listeners.smi_card import ENERGY
from radt.model import MissingReason, Scope, SeriesKind

MIB = 2**20
#: The last XID error of a card; recorded as an occurrence rather than a series.
XID = 230

_PROFILED = "DCGM's profiling module: mean over the time since its previous value"
_NVML = "NVML"
_DEVICE = f"{_NVML}, read by DCGM's host engine"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of DCGM and the metric that it becomes.

    ``scale`` converts DCGM's unit to the metric's. ``profiling`` fields come from performance
    counters, which only one tool can use on GPUs before Hopper. ``mig`` is the metric for a GPU
    instance, if DCGM has the field for one.
    """

    number: int
    metric: Metric
    scale: float = 1.0
    profiling: bool = False
    mig: Metric | None = None


def _active(number: int, name: str, description: str) -> Field:
    """Return a ratio from the profiling module, of a card and of a GPU instance."""
    return Field(
        number,
        Metric(f"gpu.{name}", "1", Scope.GPU, description=description, method=_PROFILED),
        profiling=True,
        mig=Metric(
            *(f"gpu.mig.{name}", "1", Scope.MIG),
            description=f"{description}; of a GPU instance",
            method=_PROFILED,
        ),
    )


def _bytes(number: int, name: str, description: str) -> Field:
    """Return a rate from the profiling module; DCGM has it for whole cards only."""
    metric = Metric(f"gpu.{name}", "By/s", Scope.GPU, description=description, method=_PROFILED)
    return Field(number, metric, profiling=True)


def _device(number: int, name: str, unit: str, description: str, scale: float = 1.0) -> Field:
    metric = Metric(f"gpu.{name}", unit, Scope.GPU, description=description, method=_DEVICE)
    return Field(number, metric, scale)


FIELDS: Sequence[Field] = (
    _device(155, "power", "W", "as the board averages it"),
    _device(157, "power.instant", "W", "at one instant"),
    _device(203, "utilization", "1", "share of time with at least one kernel running", 1e-2),
    _device(252, "memory.used", "By", "without what the driver reserves", MIB),
    _device(112, "clock.event_reasons", "{bits}", "bits of nvmlClocksEventReasons (nvml.h)"),
    _active(1001, "graphics.active", "share of time with the graphics or compute engine busy"),
    _active(1002, "sm.active", "share of time with at least one warp on an SM, mean of all SMs"),
    _active(1003, "sm.occupancy", "resident warps of those an SM can hold, mean of all SMs"),
    _active(1004, "tensor.active", "share of cycles with the tensor pipe busy"),
    _active(1005, "dram.active", "share of cycles with the memory interface busy"),
    _active(1006, "fp64.active", "share of cycles with the FP64 pipe busy"),
    _active(1007, "fp32.active", "share of cycles with the FMA pipe busy: FP32, and integers too"),
    _active(1008, "fp16.active", "share of cycles with the FP16 pipe busy, without tensor cores"),
    _active(1013, "tensor.imma.active", "share of cycles with integer tensor operations"),
    _active(1014, "tensor.hmma.active", "share of cycles with FP16 tensor operations"),
    _active(1015, "tensor.dfma.active", "share of cycles with FP64 tensor operations"),
    _active(1016, "int.active", "share of cycles with the integer pipe busy"),
    _bytes(1009, "pcie.tx", "from the GPU over PCIe, headers included"),
    _bytes(1010, "pcie.rx", "to the GPU over PCIe, headers included"),
    _bytes(1011, "nvlink.tx", "from the GPU over NVLink, without headers"),
    _bytes(1012, "nvlink.rx", "to the GPU over NVLink, without headers"),
)
BY_NUMBER = {field.number: field for field in FIELDS}
PROFILING = frozenset(field.number for field in FIELDS if field.profiling)
#: In the order of requests: device fields come first, as they are rarely refused.
ALL = (*(field.number for field in FIELDS if not field.profiling), XID, *sorted(PROFILING))
METRICS = (
    Metric(*(ENERGY, "J", Scope.GPU, SeriesKind.COUNTER, "since the driver was loaded"), _NVML),
    *(metric for field in FIELDS for metric in (field.metric, field.mig) if metric is not None),
)

#: The remedy if the counters may not be read; stored with the series.
COUNTERS_REMEDY = (
    "not permitted: run nv-hostengine as root, "
    "or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
)


class Status(IntEnum):
    """Return codes of DCGM (dcgm_structs.h, ``dcgmReturn_t``) that are handled here."""

    OK = 0
    GENERIC_ERROR = -3
    NOT_SUPPORTED = -6
    UNKNOWN_FIELD = -13
    NO_PERMISSION = -17
    FUNCTION_NOT_FOUND = -20
    CONNECTION_NOT_VALID = -21
    GPU_NOT_SUPPORTED = -22
    REQUIRES_ROOT = -29
    FIELD_UNSUPPORTED_BY_API = -32
    MODULE_NOT_LOADED = -33
    PROFILING_NOT_SUPPORTED = -36
    PROFILING_LIBRARY_ERROR = -37
    PROFILING_MULTI_PASS = -38
    INSUFFICIENT_DRIVER_VERSION = -44
    PAUSED = -54


_UNSUPPORTED = frozenset(
    {
        Status.NOT_SUPPORTED,
        Status.UNKNOWN_FIELD,
        Status.FUNCTION_NOT_FOUND,
        Status.GPU_NOT_SUPPORTED,
        Status.FIELD_UNSUPPORTED_BY_API,
        Status.MODULE_NOT_LOADED,
        Status.PROFILING_NOT_SUPPORTED,
        Status.PROFILING_MULTI_PASS,
        Status.INSUFFICIENT_DRIVER_VERSION,
    }
)
_PERMISSION = frozenset({Status.NO_PERMISSION, Status.REQUIRES_ROOT})
#: Refusals by the whole profiling module: no profiling field can be read.
_WHOLE_MODULE = _PERMISSION | {Status.MODULE_NOT_LOADED, Status.PROFILING_NOT_SUPPORTED}


def reason_of(status: int) -> MissingReason:
    """Return why there is no value, from a return code of DCGM."""
    if status in _UNSUPPORTED:
        return MissingReason.UNSUPPORTED
    if status in _PERMISSION:
        return MissingReason.PERMISSION
    return MissingReason.PAUSED if status == Status.PAUSED else MissingReason.LOST


@dataclass(frozen=True, slots=True)
class Refusal:
    """Fields that cannot be watched together; ``culprits`` are the fields in question, if named."""

    status: int
    text: str = ""
    culprits: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a field is not watched; if not ``lasting``, it is retried later."""

    reason: MissingReason
    lasting: bool = True


def accept(
    fields: Sequence[int], attempt: Callable[[Sequence[int]], Refusal | None]
) -> dict[int, Refused]:
    """Watch as many fields as possible; return the others with the reason.

    One bad field makes a whole watch fail, and DCGM does not say which. ``attempt`` watches fields
    in addition to those accepted before; of fields that work alone but not together, the first ones
    are kept. Trying halves, one bad field of n costs 2 log n attempts.
    """
    acceptance = _Acceptance(attempt)
    acceptance.of(tuple(fields))
    return acceptance.refused


class _Acceptance:
    """The search for fields that can be watched."""

    def __init__(self, attempt: Callable[[Sequence[int]], Refusal | None]) -> None:
        self._attempt = attempt
        self._accepted: set[int] = set()
        self.refused: dict[int, Refused] = {}

    def of(self, fields: tuple[int, ...]) -> None:
        """Watch as many of these fields as possible."""
        fields = tuple(number for number in fields if number not in self._accepted)
        refusal = self._try(fields) if fields else None
        if refusal is None:
            return
        culprits = self._culprits(fields, refusal)
        if culprits:
            reason = reason_of(refusal.status)
            lasting = reason in (MissingReason.UNSUPPORTED, MissingReason.PERMISSION)
            self.refused.update((number, Refused(reason, lasting)) for number in culprits)
            self.of(tuple(number for number in fields if number not in culprits))
            return
        for part in _parts(fields):
            self.of(part)

    def _try(self, fields: tuple[int, ...]) -> Refusal | None:
        refusal = self._attempt(fields)
        if refusal is None:
            self._accepted.update(fields)
        return refusal

    def _culprits(self, fields: tuple[int, ...], refusal: Refusal) -> frozenset[int]:
        """Return the fields that a refusal concerns; none if they are not known yet."""
        if len(fields) == 1:
            return frozenset(fields)
        if culprits := refusal.culprits & frozenset(fields):
            return culprits
        profiling = PROFILING & frozenset(fields)
        if refusal.status in _WHOLE_MODULE:
            return profiling
        held = refusal.status == Status.PROFILING_LIBRARY_ERROR
        if held and profiling and PROFILING.isdisjoint(self._accepted):
            # Either one field is bad, or another tool has all counters: a single field shows which.
            alone = self._try((min(profiling),))
            if alone is not None and alone.status == refusal.status:
                return profiling
        return frozenset()


def _parts(fields: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two smaller parts: device and profiling fields, or halves of one kind."""
    device = tuple(number for number in fields if number not in PROFILING)
    profiling = tuple(number for number in fields if number in PROFILING)
    if device and profiling:
        return device, profiling
    middle = len(fields) // 2
    return fields[:middle], fields[middle:]
