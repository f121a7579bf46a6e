"""The metrics of the smi listener, and reading those of single runs: memory, SM time, energy.

Expensive values are read at most once a second; at shorter intervals they are not regular.
Methods that call NVML may raise NVMLError (`radt.listeners.nvidia.missing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from radt.devices.gpus import mig_enabled
from radt.listeners.api import Metric, Reading
from radt.listeners.nvidia import GpuHandle, MigHandle, missing
from radt.listeners.smi_card import PowerMeter, Snapshot, Value
from radt.listeners.smi_energy import METHOD, EnergySplit, IdlePowers, Moment
from radt.listeners.smi_events import User
from radt.listeners.smi_processes import Processes, SmTime, SmTimeReader, read_processes
from radt.model import MissingReason, Scope, SeriesKind

XID_ERRORS: Final = "gpu.xid.errors"
MIG_MEMORY_USED: Final = "gpu.mig.memory.used"
MIG_MEMORY_TOTAL: Final = "gpu.mig.memory.total"
PROCESS_MEMORY: Final = "process.gpu.memory"
PROCESS_UTILIZATION: Final = "process.gpu.utilization"
PROCESS_ENERGY: Final = "process.gpu.energy"

_SINCE_DRIVER = "since the driver was loaded"
_COUNTER = SeriesKind.COUNTER


def _card(name: str, unit: str, description: str = "", **options: Any) -> Metric:
    return Metric(name, unit, Scope.GPU, description=description, **options)


METRICS: Final = (
    _card("gpu.utilization", "1", "share of time with at least one kernel running"),
    _card("gpu.memory.utilization", "1", "share of time in which memory was read or written"),
    _card("gpu.memory.used", "By", "without what the driver reserves"),
    _card("gpu.memory.total", "By"),
    _card("gpu.memory.reserved", "By", "by driver and firmware"),
    _card("gpu.power", "W", method=PowerMeter.METHOD),
    _card("gpu.power.instant", "W", method="as reported by the board, not a mean"),
    _card("gpu.power.average", "W", method="mean of one second by the driver", regular=False),
    _card("gpu.power.limit", "W", "enforced now", regular=False),
    _card("gpu.energy", "J", _SINCE_DRIVER, kind=_COUNTER),
    _card("gpu.temperature", "Cel"),
    _card("gpu.temperature.memory", "Cel"),
    _card("gpu.clock.sm", "Hz"),
    _card("gpu.clock.memory", "Hz"),
    _card(
        "gpu.clock.event_reasons",
        "{bits}",
        "why clocks are as they are: NVML's bits (nvmlClocksEventReasons)",
    ),
    _card("gpu.pcie.io.rx", "By", "received by the GPU", kind=_COUNTER),
    _card("gpu.pcie.io.tx", "By", "sent by the GPU", kind=_COUNTER),
    _card("gpu.nvlink.io.rx", "By", "received, all links", kind=_COUNTER),
    _card("gpu.nvlink.io.tx", "By", "sent, all links", kind=_COUNTER),
    _card("gpu.ecc.corrected", "1", f"errors {_SINCE_DRIVER}", kind=_COUNTER, regular=False),
    _card("gpu.ecc.uncorrected", "1", f"errors {_SINCE_DRIVER}", kind=_COUNTER, regular=False),
    _card(XID_ERRORS, "1", "the driver's error reports; also markers", kind=_COUNTER),
    Metric(MIG_MEMORY_USED, "By", Scope.MIG),
    Metric(MIG_MEMORY_TOTAL, "By", Scope.MIG),
    Metric(PROCESS_MEMORY, "By", Scope.PROCESS, description="of the run's processes only"),
    Metric(
        *(PROCESS_UTILIZATION, "1", Scope.PROCESS),
        description="share of time in which kernels of the run's processes ran",
        method="sum over the processes of the driver's samples, over at least 0.9 s",
        regular=False,
    ),
    Metric(
        *(PROCESS_ENERGY, "J", Scope.PROCESS, _COUNTER, "since the run started"),
        method=METHOD,
        estimated=True,
        regular=False,
    ),
)
#: Delay until samples of processes are requested again if the driver does not have them yet.
_RETRY_NS = 300_000_000


class CardRuns:
    """Reads the values of single runs on one card."""

    def __init__(self, nvml: Any, card: GpuHandle, idle: IdlePowers) -> None:
        self.card = card
        self._nvml = nvml
        self._split = EnergySplit(card.uuid, idle)
        self._sm_time = SmTimeReader()
        self._ask_ns = 0
        self._mig = False
        #: All processes of each run since the end of the last stretch.
        self._pids: dict[str, frozenset[int]] = {}
        self._users: Sequence[User] = ()
        self._busy: float | None = None
        #: The use by runs when another run ended in the middle of a stretch: its time, and J.
        self._unreported: dict[str, tuple[int, float]] = {}

    def relearn(self, card: GpuHandle) -> None:
        """Read the MIG mode again: the card is back, or has a new run."""
        self.card = card
        self._sm_time.relearn()
        try:
            self._mig = mig_enabled(self._nvml, card.handle)
        except self._nvml.NVMLError_GpuIsLost:
            self._mig = False

    def begin(self, at_ns: int, energy_j: Value) -> None:
        """Record the card's state before any run: it may be idle."""
        processes = read_processes(self._nvml, self.card.handle)
        self._split.begin(Moment(at_ns, energy_j, processes))

    def read(
        self, snapshot: Snapshot, users: Sequence[User], pids: Mapping[str, frozenset[int]]
    ) -> Iterator[Reading]:
        """Yield the values of these runs.

        Args:
            snapshot: The card's values at this instant.
            users: The runs on the card.
            pids: Their processes, by run.
        """
        self._users, self._busy = users, snapshot.number("gpu.utilization")
        for run in {user.run_id for user in users}:
            self._pids[run] = self._pids.get(run, frozenset()) | pids[run]
        devices = {user.named.mig for user in users}
        listed = {mig: self._processes(mig) for mig in devices}
        for run, mig in self._places(users):
            processes = listed[mig]
            memory: Value = (
                processes.memory_of(pids[run]) if isinstance(processes, Processes) else processes
            )
            yield self._reading(PROCESS_MEMORY, memory, run, mig, snapshot.at_ns)
        yield from self._mig_memory(users, snapshot.at_ns)
        if self._split.due(snapshot.at_ns) and snapshot.at_ns >= self._ask_ns:
            yield from self._shares(snapshot, users, pids, listed.get(None))

    def lost(self, at_ns: int, users: Sequence[User]) -> Iterator[Reading]:
        """Yield the missing values of runs whose card or MIG device cannot be found."""
        lost = MissingReason.LOST
        for run, mig in self._places(users):
            for metric in (PROCESS_MEMORY, PROCESS_UTILIZATION, PROCESS_ENERGY):
                yield self._reading(metric, lost, run, mig, at_ns)
        for user in users:
            if (mig := user.named.mig) is not None:
                for metric in (MIG_MEMORY_USED, MIG_MEMORY_TOTAL):
                    yield Reading(metric, lost, mig.entity, gpu=user.named.name, at_ns=at_ns)

    def interrupted(self, at_ns: int) -> None:
        """Note that the card cannot be found at the moment."""
        self._split.begin(Moment(at_ns, MissingReason.LOST, MissingReason.LOST))

    def _places(self, users: Sequence[User]) -> list[tuple[str, MigHandle | None]]:
        """Return each run once per MIG device, even if it has several names for the card."""
        return list(dict.fromkeys((user.run_id, user.named.mig) for user in users))

    def _processes(self, mig: MigHandle | None) -> Processes | MissingReason:
        handle = self.card.handle if mig is None else mig.handle
        return read_processes(self._nvml, handle, mig)

    def _mig_memory(self, users: Sequence[User], at_ns: int) -> Iterator[Reading]:
        nvml = self._nvml
        names = dict.fromkeys((user.named.name, user.named.mig) for user in users)
        for name, mig in names:
            if mig is None:
                continue
            try:
                info = nvml.nvmlDeviceGetMemoryInfo(mig.handle)
                used: Value = float(info.used)
                total: Value = float(info.total)
            except nvml.NVMLError as error:
                used = total = missing(nvml, error)
            yield Reading(MIG_MEMORY_USED, used, mig.entity, gpu=name, at_ns=at_ns)
            yield Reading(MIG_MEMORY_TOTAL, total, mig.entity, gpu=name, at_ns=at_ns)

    def _shares(
        self,
        snapshot: Snapshot,
        users: Sequence[User],
        pids: Mapping[str, frozenset[int]],
        processes: Processes | MissingReason | None,
    ) -> Iterator[Reading]:
        at_ns = snapshot.at_ns
        divided = self._mig or processes is None
        sm: SmTime | MissingReason | None = MissingReason.UNSUPPORTED
        if not divided:
            sm = self._sm_time.read(self._nvml, self.card.handle, at_ns, self._busy)
        if sm is None:
            self._ask_ns = at_ns + _RETRY_NS
            return
        before = self._split.before
        now = Moment(
            at_ns,
            snapshot.values["gpu.energy"].value,
            MissingReason.UNATTRIBUTABLE if processes is None else processes,
            mig=divided,
        )
        had = {user.run_id: self._pids[user.run_id] for user in users}
        self._pids = {run: pids[run] for run in had}
        joules = self._split.account(now, sm, had)
        self._unreported.clear()
        both = now.processes_since(before)
        for run, mig in self._places(users):
            used: Value = sm if isinstance(sm, MissingReason) else sm.of(had[run], both)
            yield self._reading(PROCESS_UTILIZATION, used, run, mig, at_ns)
            yield self._reading(PROCESS_ENERGY, joules[run], run, mig, at_ns)

    def last(self, run_id: str, at_ns: int, energy_j: Value) -> Iterator[Reading]:
        """Yield the energy that a run has used up to its end, in the middle of a stretch.

        If its share since the beginning of the stretch is unknown, yield the energy up to that
        beginning, unless it was reported already.
        """
        places = [(run, mig) for run, mig in self._places(self._users) if run == run_id]
        if self._mig or any(mig is not None for _, mig in places) or not places:
            return
        joules = self._to_the_end(run_id, at_ns, energy_j)
        if joules is None and run_id in self._unreported:
            at_ns, joules = self._unreported[run_id]
        if joules is not None:
            yield self._reading(PROCESS_ENERGY, joules, run_id, None, at_ns)

    def _to_the_end(self, run_id: str, at_ns: int, energy_j: Value) -> Value | None:
        """Return the energy of a run that ends now; None if its share is unknown."""
        if isinstance(energy_j, MissingReason):
            return None
        sm = self._sm_time.read(self._nvml, self.card.handle, at_ns, self._busy)
        now = Moment(at_ns, energy_j, self._processes(None))
        sm = sm or MissingReason.LOST  # no samples yet: needed unless the run is alone
        is_alone = self._split.is_alone(now, self._pids[run_id])
        if isinstance(now.processes, MissingReason) or not (isinstance(sm, SmTime) or is_alone):
            return None
        joules = self._split.account(now, sm, self._pids)
        self._unreported |= {
            run: (at_ns, used_j) for run, used_j in joules.items() if isinstance(used_j, float)
        }
        return joules[run_id]

    def _reading(
        self, metric: str, value: Value, run: str, mig: MigHandle | None, at_ns: int
    ) -> Reading:
        entity = self.card.entity if mig is None else mig.entity
        return Reading(metric, value, entity, run_id=run, at_ns=at_ns)
