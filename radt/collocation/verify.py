"""Verify that runs use and share the devices of their rows.

A client that cannot connect to its MPS daemon silently runs without it, and a daemon at the default
place silently serves runs that did not request it. Both would be recorded under the wrong name.
NVML lists a process once it has a CUDA context, so the lists are read about once a second until
each run has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radt import tags
from radt.collocation.processes import GpuProcess, Listing, ProcessLists, run_id_of
from radt.errors import DeviceError

#: Lists lag behind: a mismatch counts after it is seen this many times in a row.
_LOOKS = 2


class Verdict(StrEnum):
    """The result for a run; the value of the tag ``radt.verified``."""

    OPEN = "open"
    YES = "yes"
    NO = "no"  # it could not be seen
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected devices of a run.

    ``devices`` are UUIDs of its GPUs or of its MIG device, ``names`` their names in messages.
    ``mps``: it must be a client of MPS; ``mps_log`` returns the end of the daemon's log. A process
    with ``run_id`` in its environment belongs to the run, also inside a container.
    """

    devices: tuple[str, ...]
    names: str
    mps: bool = False
    mps_log: Callable[[], str] = str
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A run that is not on the devices of its row, with the evidence."""

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
    """Searches for the processes of a workload's runs among those on the GPUs.

    ``expected`` follows from each run's row, omitting runs without a device; ``gpus`` are the NVML
    indices of all GPUs to check, including those without a run.
    """

    def __init__(self, expected: Mapping[str, Expectation], gpus: Sequence[int]) -> None:
        self._states = {key: _State(wish) for key, wish in expected.items() if wish.devices}
        self._gpus = tuple(gpus)
        self._lists: ProcessLists | None = None
        self._unknown = ""

    @property
    def open_keys(self) -> frozenset[str]:
        """Return the runs that have not been seen yet."""
        return frozenset(
            key for key, state in self._states.items() if state.verdict is Verdict.OPEN
        )

    def check(self, pids: Mapping[str, Sequence[int]]) -> list[Mismatch]:
        """Check once; return runs found on wrong devices, each once.

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
        mismatches = []
        for key, state in self._states.items():
            if key in seen and state.verdict is not Verdict.MISMATCH:
                reason = _judge(state, seen[key])
                if reason:
                    mismatches.append(Mismatch(key, reason))
            elif state.looks:
                state.looks, state.suspicion = 0, ""
        return mismatches

    def ended(self, key: str) -> str:
        """End a run; return why it could not be verified, empty if it was."""
        state = self._states.get(key)
        if state is None:
            return ""
        if state.verdict is Verdict.OPEN:
            state.verdict = Verdict.NO
            state.reason = self._unknown or f"no process was seen on {state.expectation.names}"
        return state.reason if state.verdict is Verdict.NO else ""

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of a run; none for a run without a device."""
        state = self._states.get(key)
        if state is None:
            return {}
        if state.verdict is Verdict.YES:
            return {tags.VERIFIED: str(Verdict.YES)}
        reason = state.reason or "it ended before the first check"
        verdict = Verdict.NO if state.verdict is Verdict.OPEN else state.verdict
        return {tags.VERIFIED: str(verdict), tags.VERIFIED_REASON: reason}

    def close(self) -> None:
        """Shut NVML down. Idempotent."""
        if self._lists is not None:
            self._lists.close()
            self._lists = None

    def _listings(self) -> list[Listing]:
        try:
            if self._lists is None:
                self._lists = ProcessLists()
            return [self._lists.of(gpu) for gpu in self._gpus]
        except DeviceError as error:  # a GPU has fallen off the bus: the run itself will fail
            return [Listing(unknown=error.message)]


def _judge(state: _State, seen: Sequence[GpuProcess]) -> str:
    """Update a run's state from its processes; return a mismatch once it is certain."""
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
    """Return why a run may be on its device without being seen; empty if it may not."""
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
