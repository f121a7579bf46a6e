"""Set up and tear down the devices of a workload, also after its runner has died."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from radt import tags
from radt.collocation.instances import PlannedCompute, PlannedInstance
from radt.collocation.ledger import Container, CreatedLedger, LedgerEntry, MigInstance, MpsDaemon
from radt.collocation.mig import create_instance, destroy_instance
from radt.collocation.mps import (
    PERCENTAGE_VARIABLE,
    MpsServer,
    no_mps_environment,
    remove_daemon,
    remove_folder,
)
from radt.collocation.planner import DevicePlan, DeviceShare, PlannedMps
from radt.collocation.processes import DeviceName, ProcessLists
from radt.collocation.verify import Expectation, Mismatch, Verifier
from radt.devices.visible import VISIBLE_VARIABLE
from radt.errors import DeviceError
from radt.processes import run_command

#: Seconds between two checks of the runs' processes.
VERIFY_INTERVAL_S = 1.0


class DeviceSetup:
    """The devices of one workload, from set-up to clean-up.

    ``run_ids`` (the run of each key of the plan) and the workload are recorded in the ledger.
    The devices are verified every ``verify_interval_s``.
    """

    def __init__(
        self,
        plan: DevicePlan,
        *,
        run_ids: Mapping[str, str],
        workload_id: str = "",
        verify_interval_s: float = VERIFY_INTERVAL_S,
    ) -> None:
        self.plan = plan
        self.run_ids = run_ids
        self.workload_id = workload_id
        #: Objects that were created here and are not removed yet.
        self._entries: list[LedgerEntry] = []
        self._servers: dict[str, MpsServer] = {}
        #: The plan's compute instances by name, as they are now.
        self._computes: dict[str, PlannedCompute] = {}
        self._free_bytes: dict[DeviceName, int] = {}
        self._verifier: Verifier | None = None
        self._verify_interval_s = verify_interval_s
        self._next_look_s = 0.0
        self._lock = threading.RLock()

    def set_up(self, say: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """Create the MIG instances and start the MPS daemons of the plan.

        Args:
            say: Called with a sentence about each step.
            cancelled: Checked between steps; if true, everything created is removed, and the call
                returns.

        Raises:
            DeviceError: A step failed. Everything created before is removed; the message and the
                ledger name anything that could not be removed.
        """
        with self._lock:
            try:
                steps = [partial(self._provide, instance, say) for instance in self.plan.instances]
                steps += [partial(self._serve, server, say) for server in self.plan.mps_servers]
                for step in steps:
                    if cancelled():
                        break
                    step()
                else:
                    self._measure_free_memory()
                    return
            except BaseException as error:
                left = self.tear_down()
                if isinstance(error, DeviceError) and left:
                    raise DeviceError(". ".join([error.message, *left]), error.remedy) from error
                raise
            for problem in self.tear_down():
                say(problem)

    def environment(self, key: str) -> dict[str, str]:
        """Return the variables that select a run's devices and, under MPS, its daemon."""
        share = self.plan.shares[key]
        if not share.gpus:
            return {VISIBLE_VARIABLE: ""}
        variables = {VISIBLE_VARIABLE: ",".join(self._uuids(share))}
        if share.mps is None:
            return variables | dict(no_mps_environment())
        variables |= self._servers[share.mps.name].client_environment(share.thread_percentage)
        if share.thread_percentage is None and PERCENTAGE_VARIABLE in os.environ:
            variables[PERCENTAGE_VARIABLE] = "100"  # the shell's own limit must not cap this row
        return variables

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of the run's devices at its start."""
        share = self.plan.shares[key]
        values = {
            tags.GPU_MEMORY_FREE_BYTES.format(index=index): str(self._free_bytes[index])
            for index in share.gpus
            if index in self._free_bytes
        }
        if share.compute is not None and share.instance is not None:
            compute = self._computes[share.compute.name]
            (uuid,) = self._uuids(share)
            values |= {
                tags.MIG_PROFILE: compute.profile,
                tags.MIG_UUID: uuid,
                tags.MIG_CREATED: "true" if share.instance.existing_id is None else "false",
            }
            if (place := share.instance.placement) is not None:
                values[tags.MIG_PLACEMENT] = f"{place.start}:{place.size}"
            if compute.sm_count is not None:
                values[tags.MIG_SM_COUNT] = str(compute.sm_count)
            if uuid in self._free_bytes:
                values[tags.MIG_MEMORY_FREE_BYTES] = str(self._free_bytes[uuid])
        if share.mps is not None:
            values[tags.MPS_CLIENTS] = str(len(share.mps.keys))
            if share.thread_percentage is not None:
                values[tags.MPS_THREAD_PERCENTAGE] = f"{share.thread_percentage:g}"
            if (pid := self._servers[share.mps.name].thing.pid) is not None:
                values[tags.MPS_DAEMON_PID] = str(pid)
        return values

    def devices(self, key: str) -> tuple[str, ...]:
        """Return the devices for listeners to read: NVML indices, or the UUID of its MIG device."""
        share = self.plan.shares[key]
        if share.compute is not None:
            return self._uuids(share)
        return tuple(str(index) for index in share.gpus)

    @property
    def verify_due(self) -> bool:
        """Return whether `verify` would query the driver: it is due and some runs are unseen."""
        return time.monotonic() >= self._next_look_s and (
            self._verifier is None or bool(self._verifier.open_keys)
        )

    def verify(self, pids: Mapping[str, Sequence[int]]) -> list[Mismatch]:
        """Return runs that are on other devices than planned, each once.

        May be called at any rate: it queries the driver every `verify_interval_s` until all runs
        have been seen. Without a set-up there is nothing to verify.

        Args:
            pids: The live processes of each run that has not ended.
        """
        if self.plan.is_naive or time.monotonic() < self._next_look_s:
            return []
        with self._lock:
            self._next_look_s = time.monotonic() + self._verify_interval_s
            if self._verifier is None:
                gpus = {index for share in self.plan.shares.values() for index in share.gpus}
                self._verifier = Verifier(self._expectations(), sorted(gpus))
            if not self._verifier.open_keys:
                self._verifier.close()
                return []
            return self._verifier.check(pids)

    def verified(self, key: str) -> str:
        """Return why an ended run could not be verified; empty if it was or need not be."""
        return self._verifier.ended(key) if self._verifier is not None else ""

    def final_tags(self, key: str) -> dict[str, str]:
        """Return the tags of an ended run: whether it ran on the devices of its row."""
        return self._verifier.tags(key) if self._verifier is not None else {}

    def about_to_kill(self, pids: Sequence[int]) -> list[str]:
        """Detach MPS clients, so that killing them does not harm others; return failures."""
        problems = []
        for server in list(self._servers.values()):
            if server.entry not in self._entries:
                continue  # it has ended
            try:
                server.terminate_clients(pids)
            except DeviceError as error:
                problems.append(
                    f"an MPS client may leave its server in an undefined state: {error}"
                )
        return problems

    def tear_down(self) -> list[str]:
        """Remove everything that `set_up` created; return a sentence for each failure.

        Never raises; may be called from several threads, and again to retry.
        """
        with self._lock:
            if self._verifier is not None:
                self._verifier.close()
            problems = []
            for entry in _in_order(reversed(self._entries)):
                if problem := _remove(entry):
                    problems.append(problem)
                else:
                    self._entries.remove(entry)
            return problems

    def _provide(self, instance: PlannedInstance, say: Callable[[str], None]) -> None:
        """Create an instance, unless it exists."""
        if instance.existing_id is not None:
            self._computes |= {compute.name: compute for compute in instance.computes}
            return
        say(f"GPU {instance.gpu}: creating {instance.profile.name} at {instance.placement}")
        keys = [key for compute in instance.computes for key in compute.keys]
        created = create_instance(instance, run_id=self._run_of(keys), workload_id=self.workload_id)
        self._entries.append(created.entry)
        self._computes |= created.computes

    def _serve(self, planned: PlannedMps, say: Callable[[str], None]) -> None:
        """Start an MPS daemon."""
        share = self.plan.shares[planned.keys[0]]
        where = f"GPU {'+'.join(map(str, planned.gpus))}"
        if planned.compute is not None:
            where += f", {planned.compute.profile}"
        say(f"{where}: starting an MPS daemon")
        server = MpsServer(
            self._uuids(share), run_id=self._run_of(planned.keys), workload_id=self.workload_id
        )
        self._entries.append(server.start())
        self._servers[planned.name] = server

    def _measure_free_memory(self) -> None:
        indices = {index for share in self.plan.shares.values() for index in share.gpus}
        uuids = (compute.uuid for compute in self._computes.values())
        names: list[DeviceName] = [*indices, *filter(None, uuids)]
        if not names:
            return
        with ProcessLists() as lists:
            free = {name: lists.free_bytes(name) for name in names}
        self._free_bytes = {name: size for name, size in free.items() if size is not None}

    def _expectations(self) -> dict[str, Expectation]:
        expected = {}
        for key, share in self.plan.shares.items():
            if not share.gpus:
                continue
            names = "+".join(f"GPU {index}" for index in share.gpus)
            if share.compute is not None:
                names = f"{share.compute.profile} on {names}"
            expected[key] = Expectation(
                self._uuids(share),
                names,
                daemon=self._servers.get(share.mps.name) if share.mps is not None else None,
                run_id=self.run_ids.get(key, ""),
            )
        return expected

    def _uuids(self, share: DeviceShare) -> tuple[str, ...]:
        if share.compute is not None:
            uuid = self._computes[share.compute.name].uuid
            assert uuid is not None, "an existing compute instance has a UUID"
            return (uuid,)
        return share.gpu_uuids

    def _run_of(self, keys: Sequence[str]) -> str:
        """Return the run that an object serves; empty if it serves several."""
        return self.run_ids.get(keys[0], "") if len(keys) == 1 else ""


_CONTAINER_TIMEOUT_S = 60.0
#: The message of docker and podman for a container that does not exist.
_NO_CONTAINER = "no such container"


def clean_up(ledger: CreatedLedger, *, say: Callable[[str], None]) -> list[str]:
    """Remove the objects without a living owner; return a sentence for each failure.

    Args:
        ledger: The ledger; the entry of a removed object is deleted.
        say: Called with a sentence about each removed object.
    """
    failures = []
    for entry in _in_order(entry for entry in ledger.entries() if entry.orphaned):
        if problem := _remove(entry):
            failures.append(problem)
        elif entry.owner.rebooted and not isinstance(entry.thing, Container):
            say(f"{entry.thing}: gone after the machine's restart")
        else:
            say(f"{entry.thing}: removed")
    return failures


def _in_order(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return MIG instances last: they can only be removed once nothing runs on them."""
    return sorted(entries, key=lambda entry: isinstance(entry.thing, MigInstance))


def _remove(entry: LedgerEntry) -> str:
    """Remove an object with its entry; return a sentence if that fails."""
    thing = entry.thing
    # A reboot ends processes and MIG instances; their ids may have been reused since.
    rebooted = entry.owner.rebooted
    try:
        match thing:
            case MpsDaemon() if rebooted:
                remove_folder(thing)
            case MpsDaemon():
                remove_daemon(thing)
            case MigInstance() if not rebooted:
                destroy_instance(thing)
            case Container():
                _remove_container(thing)
        entry.done()
    except Exception as error:  # noqa: BLE001 - other objects must still be removed
        text = str(error) if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
        return f"{thing} was not removed: {text}"
    return ""


def _remove_container(thing: Container) -> None:
    remedy = f"Remove it with `{thing.tool} rm -f {thing.name}`"
    try:
        done = run_command([thing.tool, "rm", "-f", thing.name], _CONTAINER_TIMEOUT_S)
    except FileNotFoundError as error:
        raise DeviceError(f"{thing.tool} not found", remedy) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{thing.tool} does not answer: {error}", remedy) from error
    if done.returncode != 0 and _NO_CONTAINER not in done.stderr.lower():
        raise DeviceError(f"{thing.tool} refused: {done.stderr.strip()}", remedy)
