"""Verifies that runs use and share the devices of their rows.

A client that cannot connect to its MPS daemon silently runs without it, and a daemon at the default
place silently serves runs that did not request it. Both would be recorded under the wrong name.
NVML lists a process once it has a CUDA context, so the lists are read about once a second until
each run has been seen. If NVML does not list a run as a client of MPS, the client list of the run's
own daemon decides, because drivers differ in how they list clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from radt import procfs, tags
from radt.collocation.mps import MpsServer
from radt.collocation.processes import (
    GpuProcess,
    ProcessListing,
    ProcessLists,
)
from radt.devices.nvml import MPS_SERVER
from radt.errors import DeviceError
from radt.home import RUN_ID_VARIABLE

#: Lists lag behind: a mismatch counts after it is seen this many times in a row.
_LOOKS = 2
#: Seconds that a daemon has to list its clients; the runner waits meanwhile.
_ANSWER_S = 2.0
#: A daemon that has not answered this many times in a row is not asked again about a run.
_MOST_UNANSWERED = 3


class Verification(StrEnum):
    """The result for a run; the value of the tag ``radt.verified``."""

    OPEN = "open"
    YES = "yes"
    NO = "no"  # it was not seen
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected devices of a run.

    ``devices`` are UUIDs of its GPUs or of its MIG device, ``names`` their names in messages. It
    must be a client of ``daemon``, or of no MPS daemon if that is None. A process with ``run_id``
    in its environment belongs to the run, even inside a container.
    """

    devices: tuple[str, ...]
    names: str
    daemon: MpsServer | None = None
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A run that is not on the devices of its row, with the evidence."""

    key: str
    reason: str


@dataclass(slots=True)
class _State:
    expectation: Expectation
    verdict: Verification = Verification.OPEN
    reason: str = ""
    looks: int = 0
    #: Number of consecutive queries that its daemon did not answer.
    unanswered: int = 0


class Verifier:
    """Searches for the processes of a workload's runs among those on the GPUs.

    ``expected`` follows from each run's row; runs without a device are omitted. ``gpus`` are the
    NVML indices of all GPUs to check, including those without a run.
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
            key for key, state in self._states.items() if state.verdict is Verification.OPEN
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
                key = owners.get(process.pid) or run_keys.get(
                    procfs.variable(process.pid, RUN_ID_VARIABLE)
                )
                if key is not None:
                    seen.setdefault(key, []).append(process)
        self._unknown = _why_unknown(listings)
        is_hidden = bool(self._unknown) or any(
            procfs.executes(process.pid, MPS_SERVER)
            for listing in listings
            for process in listing.processes
        )
        # Each daemon is asked once for all runs.
        clients_of: Callable[..., Collection[int] | None] = cache(_clients_of)
        mismatches = []
        for key, state in self._states.items():
            hidden = pids.get(key, ()) if is_hidden else ()
            own = _with_clients(state, seen.get(key, []), hidden, clients_of)
            if own and state.verdict is not Verification.MISMATCH:
                reason = _judge(state, own)
                if reason:
                    mismatches.append(Mismatch(key, reason))
            else:
                state.looks = 0
        return mismatches

    def ended(self, key: str) -> str:
        """End a run; return why it could not be verified, empty if it was."""
        state = self._states.get(key)
        if state is None:
            return ""
        if state.verdict is Verification.OPEN:
            state.verdict = Verification.NO
            state.reason = self._unknown or f"no process was seen on {state.expectation.names}"
        return state.reason if state.verdict is Verification.NO else ""

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of a run; none for a run without a device."""
        state = self._states.get(key)
        if state is None:
            return {}
        if state.verdict is Verification.YES:
            return {tags.VERIFIED: str(Verification.YES)}
        reason = state.reason or "it ended before the first check"
        verdict = Verification.NO if state.verdict is Verification.OPEN else state.verdict
        return {tags.VERIFIED: str(verdict), tags.VERIFIED_REASON: reason}

    def close(self) -> None:
        """Shut NVML down. Idempotent."""
        if self._lists is not None:
            self._lists.close()
            self._lists = None

    def _listings(self) -> list[ProcessListing]:
        try:
            if self._lists is None:
                self._lists = ProcessLists()
            return [self._lists.of(gpu) for gpu in self._gpus]
        except DeviceError as error:  # a GPU has fallen off the bus: the run itself will fail
            return [ProcessListing(unknown=error.message)]


def _clients_of(daemon: MpsServer) -> Collection[int] | None:
    """Return the clients of a daemon; None if it does not answer, which proves nothing."""
    try:
        return daemon.clients(_ANSWER_S).keys()
    except DeviceError:
        return None


def _with_clients(
    state: _State,
    seen: Sequence[GpuProcess],
    hidden: Sequence[int],
    clients_of: Callable[..., Collection[int] | None],
) -> Sequence[GpuProcess]:
    """Return a run's processes, marking those as clients that its daemon lists as such.

    If the daemon does not answer, it is unknown whether the others are clients.

    Args:
        state: The run's state.
        seen: Its processes in NVML's lists. If there are none, clients among `hidden` are added.
        hidden: Its processes if NVML may hide them: it may list only their MPS server, pids of
            another namespace, or nothing.
        clients_of: Returns the clients of a daemon.
    """
    daemon = state.expectation.daemon
    unclear = [process for process in seen if not process.mps] if seen else hidden
    if daemon is None or not unclear or state.verdict is Verification.MISMATCH:
        return seen
    clients = clients_of(daemon) if state.unanswered < _MOST_UNANSWERED else None
    state.unanswered = state.unanswered + 1 if clients is None else 0
    if clients is None:
        return [replace(process, mps=process.mps or None) for process in seen]
    if not seen:
        device = state.expectation.devices[0]
        return [GpuProcess(pid, device, mps=True) for pid in hidden if pid in clients]
    return [replace(process, mps=True) if process.pid in clients else process for process in seen]


def _judge(state: _State, seen: Sequence[GpuProcess]) -> str:
    """Update a run's state from its processes; return a mismatch once it is certain."""
    wish = state.expectation
    wrong = ""
    for process in seen:
        if process.device not in wish.devices:
            wrong = f"belongs on {wish.names}, but pid {process.pid} is on {process.device}"
        elif wish.daemon is not None and process.mps is False:
            log = wish.daemon.log_tail()
            wrong = (
                f"asked for MPS, but runs without: pid {process.pid} is not a client of the daemon "
                f"on {wish.names}" + (f" (its log: {log})" if log else "")
            )
        elif process.mps and wish.daemon is None:
            wrong = (
                f"did not ask for MPS, but runs with it: pid {process.pid} is a client of an MPS "
                f"daemon on {wish.names}"
            )
    if not wrong:
        state.looks = 0
        if state.verdict is Verification.OPEN:
            if wish.daemon is None or any(process.mps for process in seen):
                state.verdict = Verification.YES
            elif not state.unanswered:
                state.verdict, state.reason = (
                    Verification.NO,
                    "this driver does not list MPS clients",
                )
            elif state.unanswered >= _MOST_UNANSWERED:
                reason = "the driver does not list it as a client of MPS, and its MPS daemon does"
                state.verdict, state.reason = Verification.NO, f"{reason} not answer"
        return ""
    state.looks += 1
    if state.looks < _LOOKS:
        return ""
    state.verdict, state.reason = Verification.MISMATCH, wrong
    return wrong


def _why_unknown(listings: Sequence[ProcessListing]) -> str:
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
