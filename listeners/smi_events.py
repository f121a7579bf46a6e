"""Events of a card as markers: XID errors, and clocks throttled for heat or power.

XIDs are the driver's error reports (https://docs.nvidia.com/deploy/xid-errors/). Their count is a
series too, which distinguishes a card without errors from one whose errors cannot be watched.
Methods that call NVML may raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radt.listeners.api import Occurrence
from radt.listeners.nvidia import Card, Named, missing
from radt.model import MissingReason

#: The limit on events taken at once; more stay in the driver's queue.
_MOST_EVENTS = 32
#: ``gpuInstanceId`` of an event that concerns the whole card.
_WHOLE_CARD = 2**32 - 1
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
#: Bits of ``gpu.clock.event_reasons`` that slow a run down. The software power cap (4) is not among
#: them: a card at its limit reaches it all the time.
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
        #: Cards that the set watches, and those that it cannot watch.
        self._watched: set[str] = set()
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

    def count(self, card: Card) -> float | MissingReason:
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

    def forget(self, card: Card) -> None:
        """Watch a lost card again once it is counted again."""
        self._watched.discard(card.uuid)

    def _watch(self, card: Card) -> None:
        nvml = self._nvml
        if self._set is None:
            self._set = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(card.handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        self._watched.add(card.uuid)

    def take(self, cards: Mapping[str, tuple[Card, Sequence[User]]]) -> Iterator[Occurrence]:
        """Yield the errors since the previous call.

        Args:
            cards: Cards with the runs on them, by UUID.
        """
        nvml = self._nvml
        for _ in range(_MOST_EVENTS):
            if self._set is None:
                return
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = str(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    missing(nvml, error)
                    # The set is useless once one of its cards is lost: register again.
                    self.close()
                return
            if not event.eventType & nvml.nvmlEventTypeXidCriticalError:
                continue
            self._counts[uuid] = self._counts.get(uuid, 0) + 1
            card, users = cards.get(uuid, (None, ()))
            for user in users:
                if card is not None and _concerns(event, user):
                    yield _xid(int(event.eventData), card, user)


def _concerns(event: Any, user: User) -> bool:
    mig = user.named.mig
    return mig is None or event.gpuInstanceId in (_WHOLE_CARD, mig.gpu_id)


def _xid(number: int, card: Card, user: User) -> Occurrence:
    meaning = _XIDS.get(number, "see NVIDIA's list of XID errors")
    return Occurrence(f"XID {number}", f"{card.entity}: {meaning}", run_id=user.run_id)


class ThrottleWatch:
    """Marks when a card's clocks begin and end to be throttled."""

    def __init__(self) -> None:
        self._last_ns: dict[int, int] = {}
        self._notified: set[str] = set()

    def take(
        self, card: Card, reasons: int, at_ns: int, users: Sequence[User]
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
