"""Events of a card as markers: XID errors, its loss, and clocks throttled for heat or power.

XIDs are the driver's error reports (https://docs.nvidia.com/deploy/xid-errors/). Their count is
also a series, which distinguishes a card without errors from one that cannot be watched for them.
Methods that call NVML may raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from radt.devices.nvml import NO_INSTANCE
from radt.listeners.api import Occurrence
from radt.listeners.nvidia import GpuHandle, Named, missing
from radt.model import MissingReason

#: Maximum number of events taken at once; more stay in the driver's queue.
_MOST_EVENTS = 32
_XIDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup, due to previous errors",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    143: "GPU initialisation failure",
}
#: Bits of ``gpu.clock.event_reasons`` that slow a run down. The software power cap (4) is excluded:
#: a card at its power limit has it all the time.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}
#: A reason that returns within this time counts as continuous.
_PAUSE_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class User:
    """A run on a card, with its name for it."""

    run_id: str
    named: Named


class XidWatch:
    """Watches the cards of runs for XID errors, without blocking."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._set: Any = None
        #: Number of errors by UUID of the card.
        self._counts: dict[str, int] = {}
        #: Cards that the event set watches, and cards that it cannot watch.
        self._watched: set[str] = set()
        #: UUIDs by handle: a card that has fallen off the bus cannot be asked for its UUID.
        self._uuids: dict[int | None, str] = {}
        self._refused: set[str] = set()

    def open(self, nvml: Any) -> None:
        self._nvml = nvml

    def close(self) -> None:
        """Stop watching; cards that are counted afterwards are watched again."""
        events, self._set = self._set, None
        self._watched.clear()
        self._refused.clear()
        if events is not None:
            self._nvml.nvmlEventSetFree(events)

    def count(self, card: GpuHandle) -> float | MissingReason:
        """Return the card's errors since its first count, or why they are unknown."""
        if card.uuid in self._refused:
            return MissingReason.UNSUPPORTED
        if card.uuid not in self._watched:
            try:
                self._watch(card)
            except self._nvml.NVMLError as error:
                reason = missing(self._nvml, error)
                if reason is MissingReason.UNSUPPORTED:
                    self._refused.add(card.uuid)
                return reason
        return float(self._counts.setdefault(card.uuid, 0))

    def forget(self, card: GpuHandle) -> None:
        """Watch a lost card again once it is counted again."""
        self._watched.discard(card.uuid)

    def _watch(self, card: GpuHandle) -> None:
        nvml = self._nvml
        if self._set is None:
            self._set = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(card.handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        self._watched.add(card.uuid)
        self._uuids[_address(card.handle)] = card.uuid

    def take(self, groups: Iterable[Sequence[User]]) -> Iterator[Occurrence]:
        """Yield the errors since the previous call for runs, which are grouped by card."""
        nvml, users_of = self._nvml, {users[0].named.card.uuid: users for users in groups}
        for _ in range(_MOST_EVENTS):
            if self._set is None:
                return
            try:
                event = nvml.nvmlEventSetWait(self._set, 0)
                uuid = self._uuids.get(_address(event.device))
                uuid = uuid or str(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    missing(nvml, error)
                    # The event set is useless once one of its cards is lost: register again.
                    self.close()
                return
            if not event.eventType & nvml.nvmlEventTypeXidCriticalError:
                continue
            self._counts[uuid] = self._counts.get(uuid, 0) + 1
            for user in users_of.get(uuid, ()):
                if _concerns(event, user):
                    yield _xid(int(event.eventData), user)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _concerns(event: Any, user: User) -> bool:
    mig = user.named.mig
    return mig is None or event.gpuInstanceId in (NO_INSTANCE, mig.gpu_id)


def _xid(number: int, user: User) -> Occurrence:
    meaning = _XIDS.get(number, "see NVIDIA's list of XID errors")
    detail = f"{user.named.card.entity}: {meaning}"
    return Occurrence(f"XID {number}", detail, run_id=user.run_id)


class LossWatch:
    """Marks once for each run that its card is lost."""

    def __init__(self) -> None:
        #: Cards, and the runs that already have a marker of their loss.
        self._notified: set[tuple[str, str]] = set()

    def take(self, nvml: Any, card: GpuHandle, run_ids: Iterable[str]) -> Iterator[Occurrence]:
        """Yield the loss of a card for the runs on it, with NVML's error if there is one."""
        why = error_of(nvml, card) or "none of its values can be read"
        for run_id in run_ids:
            if (card.uuid, run_id) not in self._notified:
                self._notified.add((card.uuid, run_id))
                yield Occurrence(f"{card.entity} lost", why, run_id=run_id)

    def found(self, card: GpuHandle) -> None:
        """Note that the card can be read, so that a new loss is reported again."""
        self._notified = {known for known in self._notified if known[0] != card.uuid}


def error_of(nvml: Any, card: GpuHandle) -> str:
    """Return NVML's error if the card does not answer, else empty."""
    try:
        nvml.nvmlDeviceGetUUID(card.handle)
    except nvml.NVMLError as error:
        missing(nvml, error)  # raises errors that concern all cards
        return str(error)
    return ""


class ThrottleWatch:
    """Marks when a card's clocks begin and end to be throttled."""

    def __init__(self) -> None:
        self._last_ns: dict[int, int] = {}
        self._notified: set[str] = set()

    def take(
        self, card: GpuHandle, reasons: int, at_ns: int, users: Sequence[User]
    ) -> Iterator[Occurrence]:
        """Yield the changes of the bits of ``gpu.clock.event_reasons`` for the runs on a card."""
        runs = list(dict.fromkeys(user.run_id for user in users))
        for bit, name in _THROTTLES.items():
            last_ns = self._last_ns.get(bit)
            if reasons & bit:
                detail = f"{card.entity}: {name} begins"
                for run in runs:
                    if last_ns is None:
                        yield Occurrence(f"{name} begins", detail, run_id=run, at_ns=at_ns)
                    elif run not in self._notified:
                        earlier = f"{card.entity}: since before the run"
                        yield Occurrence(f"{name} begins", earlier, run_id=run, at_ns=at_ns)
                self._last_ns[bit] = at_ns
            elif last_ns is not None and at_ns - last_ns >= _PAUSE_NS:
                del self._last_ns[bit]
                for run in runs:
                    if run in self._notified:
                        yield Occurrence(f"{name} ends", card.entity, run_id=run, at_ns=last_ns)
        self._notified = set(runs)
