"""Whether runs use the devices, and share them, as their rows say: seen, not assumed.

A client that cannot connect to its MPS daemon silently runs without one, and a daemon that happens
to listen at the usual place silently takes in runs that asked for none. Both would be measured
under the wrong name. A process is listed once it has a CUDA context, so the lists are looked at
about once a second until each run has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radt.collocation.processes import GpuProcess, Listing, ProcessLists, run_id_of
from radt.errors import DeviceError

VERIFIED_TAG = "radt.verified"
REASON_TAG = "radt.verified.reason"

#: Lists lag behind: what is seen this many times in a row is so.
_LOOKS = 2


class Verdict(StrEnum):
    """What is known of a run; the value of the tag ``radt.verified``."""

    OPEN = "open"
    YES = "yes"
    NO = "no"  # it could not be seen
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Where a run has to be seen.

    ``devices`` are UUIDs of its GPUs or of its MIG device, ``names`` what people call them. ``mps``
    says whether it has to be a client of MPS, and ``mps_log`` gives the end of the daemon's log.
    A process that carries ``run_id`` in its environment is the run's, also inside a container.
    """

    devices: tuple[str, ...]
    names: str
    mps: bool = False
    mps_log: Callable[[], str] = str
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A run that is not where its row says, and why that is known."""

    key: str
    reason: str


@dataclass(slots=True)
class _State:
    expectation: Expectation
    verdict: Verdict = Verdict.OPEN
    reason: str = ""
    suspicion: str = ""
    looks: int = 0


class Verifier:
    """Looks for the processes of a workload's runs among those on the GPUs.

    Args:
        expected: What each run's row says; runs without a device are left out.
        gpus: NVML indices of all GPUs to look at: also where no run belongs.
    """

    def __init__(self, expected: Mapping[str, Expectation], gpus: Sequence[int]) -> None:
        self._states = {key: _State(wish) for key, wish in expected.items() if wish.devices}
        self._gpus = tuple(gpus)
        self._lists: ProcessLists | None = None
        self._unknown = ""

    @property
    def open_keys(self) -> frozenset[str]:
        """Runs that have not been seen yet."""
        return frozenset(
            key for key, state in self._states.items() if state.verdict is Verdict.OPEN
        )

    def check(self, pids: Mapping[str, Sequence[int]]) -> list[Mismatch]:
        """Look once; return runs that are found to be on the wrong side, each once.

        Args:
            pids: The live processes of each run.
        """
        listings = self._listings()
        owners = {pid: key for key, of_run in pids.items() for pid in of_run}
        run_keys = {
            state.expectation.run_id: key
            for key, state in self._states.items()
            if state.expectation.run_id
        }
        seen: dict[str, list[GpuProcess]] = {}
        for listing in listings:
            for process in listing.processes:
                key = owners.get(process.pid) or run_keys.get(run_id_of(process.pid) or "-")
                if key is not None:
                    seen.setdefault(key, []).append(process)
        self._unknown = _why_unknown(listings)
        found = []
        for key, state in self._states.items():
            if key in seen and state.verdict is not Verdict.MISMATCH:
                reason = _judge(state, seen[key])
                if reason:
                    found.append(Mismatch(key, reason))
            elif state.looks:
                state.looks, state.suspicion = 0, ""
        return found

    def ended(self, key: str) -> str:
        """A run has ended; return why it could not be verified, empty if it was."""
        state = self._states.get(key)
        if state is None:
            return ""
        if state.verdict is Verdict.OPEN:
            state.verdict = Verdict.NO
            state.reason = self._unknown or f"no process was seen on {state.expectation.names}"
        return state.reason if state.verdict is Verdict.NO else ""

    def tags(self, key: str) -> dict[str, str]:
        """What is recorded of a run; nothing for a run without a device."""
        state = self._states.get(key)
        if state is None:
            return {}
        if state.verdict is Verdict.YES:
            return {VERIFIED_TAG: str(Verdict.YES)}
        reason = state.reason or "it ended before the first check"
        verdict = Verdict.NO if state.verdict is Verdict.OPEN else state.verdict
        return {VERIFIED_TAG: str(verdict), REASON_TAG: reason}

    def close(self) -> None:
        """Let the driver go; harmless if that was done."""
        if self._lists is not None:
            self._lists.close()
            self._lists = None

    def _listings(self) -> list[Listing]:
        try:
            if self._lists is None:
                self._lists = ProcessLists()
            return [self._lists.of(gpu) for gpu in self._gpus]
        except DeviceError as error:  # a GPU has fallen off the bus: the run itself will say so
            return [Listing(unknown=error.message)]


def _judge(state: _State, seen: Sequence[GpuProcess]) -> str:
    """Take note of where a run's processes are; return why that is wrong, once it is certain."""
    wish = state.expectation
    wrong = ""
    for process in seen:
        if process.device not in wish.devices:
            wrong = f"belongs on {wish.names}, but pid {process.pid} is on {process.device}"
        elif wish.mps and process.mps is False:
            log = wish.mps_log()
            wrong = (
                f"asked for MPS, but runs without: pid {process.pid} is not a client of the daemon "
                f"on {wish.names}" + (f" (its log: {log})" if log else "")
            )
        elif process.mps and not wish.mps:
            wrong = (
                f"did not ask for MPS, but runs with it: pid {process.pid} is a client of an MPS "
                f"daemon on {wish.names}"
            )
    if not wrong:
        state.looks, state.suspicion = 0, ""
        if state.verdict is Verdict.OPEN:
            if wish.mps and not any(process.mps for process in seen):
                state.verdict, state.reason = Verdict.NO, "this driver does not list MPS clients"
            else:
                state.verdict = Verdict.YES
        return ""
    state.looks = state.looks + 1 if state.suspicion else 1
    state.suspicion = wrong
    if state.looks < _LOOKS:
        return ""
    state.verdict, state.reason = Verdict.MISMATCH, wrong
    return wrong


def _why_unknown(listings: Sequence[Listing]) -> str:
    """Why a run may be on its device without being seen there; empty if it may not."""
    for listing in listings:
        if listing.unknown:
            return f"the driver does not list processes: {listing.unknown}"
    strangers = [
        process.pid
        for listing in listings
        for process in listing.processes
        if not Path(f"/proc/{process.pid}").exists()
    ]
    if strangers:
        return (
            f"the driver lists process ids of another namespace (a container): pid {strangers[0]}"
        )
    return ""
