"""A workload's second step: environments are built, devices set up, CPUs shared out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from radt.collocation.busy import BusyPolicy, wait_until_free
from radt.collocation.ledger import Container, Entry, Ledger
from radt.collocation.packing import PlacementError
from radt.collocation.planner import DevicePlan, Request, plan_devices
from radt.collocation.setup import DeviceSetup, inventory_for
from radt.devices.cpus import CpuTopology, assign_cpus, cpu_list
from radt.environments.build import BuiltEnvironment, Launch, build
from radt.environments.mlproject import read_project
from radt.environments.spec import EnvironmentKind, EnvironmentSpec
from radt.errors import DeviceError, EnvironmentBuildError, UsageError
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.experiment.row import profiler_in_container
from radt.runner.command import (
    Profiling,
    RunIdentity,
    environment_of,
    program_arguments,
    program_command,
)
from radt.runner.preparation import MlflowIds, RecordedRun, RecordedWorkload
from radt.runner.recording import Session
from radt.runner.spread import placed
from radt.tags import CPUS

Say = Callable[[str], None]

#: Seconds between two looks whether others have made room, and in which Ctrl-C ends the waiting.
PLACE_POLL_S = 2.0
_CANCEL_S = 0.1


class SetUpError(Exception):
    """A workload cannot be set up; ``reasons`` are by the letters of the rows concerned."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A run and all that it takes to start it."""

    recorded: RecordedRun
    command: Sequence[str]
    env: Mapping[str, str]
    cpus: frozenset[int] | None
    kill_command: Sequence[str] | None
    exit_code: Callable[[int], int]
    profiling: Profiling | None = None


@dataclass(slots=True)
class Provision:
    """What a workload needs on this machine, from set-up to clean-up. Keys are letters."""

    session: Session
    workload: RecordedWorkload
    busy: BusyPolicy
    say: Say
    cancelled: Callable[[], bool]
    devices: DeviceSetup | None = None
    _environments: dict[EnvironmentSpec, BuiltEnvironment] = field(default_factory=dict)
    _cpus: dict[str, frozenset[int] | None] = field(default_factory=dict)
    _containers: list[Entry] = field(default_factory=list)

    @property
    def _rows(self) -> list[RunPlan]:
        return [run.plan for run in self.workload.runs]

    def set_up(self) -> None:
        """Build, wait for devices that others use, create instances, start daemons.

        Raises:
            SetUpError: Something of it cannot be had; nothing is left of the rest.
        """
        self._build_environments()
        self._assign_cpus()
        if not self.cancelled():
            self._set_up_devices()

    def tear_down(self) -> list[str]:
        """Take away what `set_up` made; sentences about what could not be."""
        problems = []
        for entry in self._containers:
            try:
                entry.done()  # the keeper has removed it with the run
            except DeviceError as error:
                problems.append(str(error))
        self._containers.clear()
        return problems + (self.devices.tear_down() if self.devices is not None else [])

    def tags(self, letter: str) -> dict[str, str]:
        """What is recorded of a run's environment, devices and CPUs."""
        tags = dict(self.devices.tags(letter)) if self.devices is not None else {}
        if cpus := self._cpus.get(letter):
            tags[CPUS] = cpu_list(sorted(cpus), separator=",")
        return tags

    def startable(
        self, run: RecordedRun, mlflow: MlflowIds, extra: Mapping[str, str]
    ) -> LaunchSpec:
        """Put together what starts a run.

        Args:
            extra: Further variables for its environment.

        Raises:
            SetUpError: It cannot be started in its environment.
        """
        with _blame(run.plan.letter):
            return self._startable(run, mlflow, extra)

    def _startable(
        self, run: RecordedRun, mlflow: MlflowIds, extra: Mapping[str, str]
    ) -> LaunchSpec:
        row = placed(run.plan, extra)
        identity = RunIdentity(
            run_id=run.run_id,
            spool=run.run_dir.path,
            tracking_uri=self.session.tracking_uri,
            mlflow_run_id=mlflow.runs.get(run.run_id),
            mlflow_experiment_id=mlflow.experiment,
            mlflow_pending=mlflow.pending,
        )
        env = environment_of(row, identity, self.session.home, self.session.machine)
        env |= extra
        if self.devices is not None:
            env |= self.devices.environment(row.letter)
        profiling = run.profilers.attached(row, run.run_id, run.run_dir)
        if profiling is not None:
            env |= profiling.environment
        environment = self._environments[environment_spec(row)]
        launch = Launch(
            arguments=tuple(_arguments(row)),
            needs_python=row.program.is_python,
            folder=row.program.folder,
            run_id=run.run_id,
            run_dir=run.run_dir.path,
            home=self.session.home.path,
            variables=env,
            gpu_uuids=tuple(filter(None, env["CUDA_VISIBLE_DEVICES"].split(","))),
            cpus=self._cpus.get(row.letter),
        )
        environment.prepare(launch)
        command, variables = environment.command(launch), environment.variables(launch)
        if profiling is not None:
            if profiling.prefix and environment.container(launch):
                raise profiler_in_container(profiling.name)
            command = profiling.command(command)
        if name := environment.container(launch):
            self._containers.append(Ledger().intend(Container(name), run_id=run.run_id))
        return LaunchSpec(
            recorded=run,
            command=command,
            env=env | variables,
            cpus=self._cpus.get(row.letter),
            kill_command=environment.kill_command(launch),
            exit_code=environment.exit_code,
            profiling=profiling,
        )

    def _build_environments(self) -> None:
        logs = self.session.home.path / "logs"
        for row in self._rows:
            with _blame(row.letter):
                spec = environment_spec(row)
                if spec not in self._environments and not self.cancelled():
                    if spec.kind is not EnvironmentKind.LOCAL:
                        logs.mkdir(mode=0o700, exist_ok=True)
                    log = logs / f"environment-{self.workload.workload_id[:8]}-{row.letter}.log"
                    self._environments[spec] = build(
                        spec, log=log, say=self.say, cancelled=self.cancelled
                    )
        for run in self.workload.runs:
            with _blame(run.plan.letter):
                built = self._environments.get(environment_spec(run.plan))
                if built is not None and built.packages:
                    _note_packages(run.run_dir.artifacts, built.packages)

    def _assign_cpus(self) -> None:
        available = frozenset(os.sched_getaffinity(0))
        try:
            requests = [row.cpus for row in self._rows]
            sets = assign_cpus(requests, available, CpuTopology.read(available))
        except UsageError as error:
            letters = [row.letter for row in self._rows if row.cpus.count is not None]
            raise SetUpError(dict.fromkeys(letters, str(error))) from error
        self._cpus = {row.letter: cpus for row, cpus in zip(self._rows, sets, strict=True)}

    def _set_up_devices(self) -> None:
        rows = self._rows
        if not any(row.devices.gpus for row in rows):
            return  # nothing of a GPU is touched, or even looked at
        requests = [Request(row.letter, row.devices.gpus, row.collocation) for row in rows]
        try:
            if (plan := self._plan_devices(requests)) is None:
                return
            wait_until_free(_devices_in_use(plan), self.busy, self.say, self.cancelled)
            # What is there may have changed while others were waited for.
            if (plan := self._plan_devices(requests)) is None:
                return
            run_ids = {run.plan.letter: run.run_id for run in self.workload.runs}
            devices = DeviceSetup(plan, run_ids=run_ids, workload_id=self.workload.workload_id)
            devices.set_up(self.say, self.cancelled)
            self.devices = devices
        except PlacementError as error:
            raise SetUpError(dict.fromkeys(error.keys, str(error))) from error
        except DeviceError as error:
            letters = [row.letter for row in rows if row.devices.gpus]
            raise SetUpError(dict.fromkeys(letters, str(error))) from error

    def _plan_devices(self, requests: Sequence[Request]) -> DevicePlan | None:
        """The plan, as soon as nobody is in its way; None if the user does not wait for it.

        Raises:
            DeviceError: There is none, or somebody is in its way and the policy is not to wait.
        """
        announced = ""
        while not self.cancelled():
            try:
                gpus = self.session.machine.gpus
                return plan_devices(requests, inventory_for(requests, gpus))
            except PlacementError as error:
                if not error.may_pass or self.busy is not BusyPolicy.WAIT:
                    raise
                if error.message != announced:
                    announced = error.message
                    self.say(f"{announced}: waiting")
            end_s = time.monotonic() + PLACE_POLL_S
            while time.monotonic() < end_s and not self.cancelled():
                time.sleep(_CANCEL_S)
        return None


@contextmanager
def _blame(letter: str) -> Iterator[None]:
    """What goes wrong inside is that row's."""
    try:
        yield
    except (EnvironmentBuildError, DeviceError, UsageError) as error:
        raise SetUpError({letter: str(error)}) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise SetUpError({letter: f"{place}{error.strerror or error}"}) from error


def _devices_in_use(plan: DevicePlan) -> list[int | str]:
    """What others may be on: whole GPUs, and the MIG devices that are there already."""
    devices: dict[int | str, None] = {}
    for share in plan.shares.values():
        if share.compute is None:
            devices |= dict.fromkeys(share.gpus)
        elif (uuid := plan.compute(share.compute)[1].uuid) is not None:
            devices[uuid] = None
    return list(devices)


def environment_spec(row: RunPlan) -> EnvironmentSpec:
    """The row's environment; a project brings its own unless the row names one.

    Raises:
        UsageError: The MLproject file is wrong.
    """
    if row.environment.kind is EnvironmentKind.LOCAL and row.program.kind is ProgramKind.PROJECT:
        return read_project(row.program.path, row.environment.data).environment
    return row.environment


def _arguments(row: RunPlan) -> list[str]:
    if row.program.is_python:
        return program_arguments(row)
    return program_command(row, Path(sys.executable))


def _note_packages(artifacts: Path, packages: str) -> None:
    folder = artifacts / "environment"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "packages.txt").write_text(packages, encoding="utf-8")
