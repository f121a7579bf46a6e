"""A workload's second step: build environments, set devices up, and assign CPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from radt.collocation.busy import BusyPolicy, wait_until_free
from radt.collocation.ledger import Container, CreatedLedger, LedgerEntry
from radt.collocation.packing import PlacementError
from radt.collocation.planner import DevicePlan, DeviceRequest, plan_here, warnings
from radt.collocation.setup import DeviceSetup
from radt.devices.cpus import CpuTopology, assign_cpus
from radt.devices.gpus import Gpus
from radt.environments.build import BuiltEnvironment, Launch, build
from radt.environments.mlproject import read_project
from radt.environments.spec import EnvironmentKind, EnvironmentSpec, ProgramEnd
from radt.errors import DeviceError, EnvironmentBuildError, UsageError
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind
from radt.experiment.row import profiler_in_container
from radt.home import (
    HOME_VARIABLE,
    MAX_EPOCH_VARIABLE,
    MAX_TIME_VARIABLE,
    MLFLOW_PENDING_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    VARIABLES_OF_A_RUN,
)
from radt.runner.command import Profiling, program_arguments, program_command
from radt.runner.context import RunnerContext
from radt.runner.multinode import placed
from radt.runner.preparation import MlflowIds, RecordedRun, RecordedWorkload
from radt.tags import CPUS
from radt.units import ranges_text

Say = Callable[[str], None]

#: Seconds between checks whether other processes have released the devices.
PLACE_POLL_S = 2.0


class SetUpError(Exception):
    """A workload cannot be set up; ``reasons`` are by the letters of the rows concerned."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that is needed to start a run."""

    command: Sequence[str]
    env: Mapping[str, str]
    cpus: frozenset[int] | None
    kill_command: Sequence[str] | None
    ended: Callable[[int], ProgramEnd]
    profiling: Profiling | None = None


@dataclass(slots=True)
class Provision:
    """The resources of a workload on this machine, from set-up to clean-up. Keys are letters."""

    context: RunnerContext
    workload: RecordedWorkload
    say: Say
    devices: DeviceSetup | None = None
    _environments: dict[EnvironmentSpec, BuiltEnvironment] = field(default_factory=dict)
    _cpus: dict[str, frozenset[int] | None] = field(default_factory=dict)
    _containers: list[LedgerEntry] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)

    def cancelled(self) -> bool:
        """Return True if radt was asked to stop."""
        return bool(self.context.stop)

    @property
    def _rows(self) -> list[RunPlan]:
        return [run.plan for run in self.workload.runs]

    def set_up(self) -> None:
        """Build environments, wait for devices in use, create instances, start daemons.

        Raises:
            SetUpError: A resource is not available; all others were released again.
        """
        self._build_environments()
        self._assign_cpus()
        if not self.cancelled():
            self._set_up_devices()

    def tear_down(self) -> list[str]:
        """Undo `set_up`; return a sentence about everything that could not be removed."""
        problems = []
        for entry in self._containers:
            try:
                entry.done()  # the keeper has removed it with the run
            except DeviceError as error:
                problems.append(str(error))
        self._containers.clear()
        return problems + (self.devices.tear_down() if self.devices is not None else [])

    def tags(self, letter: str) -> dict[str, str]:
        """Return tags with a run's environment, devices and CPUs."""
        tags = dict(self.devices.tags(letter)) if self.devices is not None else {}
        if cpus := self._cpus.get(letter):
            tags[CPUS] = ranges_text(sorted(cpus), separator=",")
        return tags

    def startable(
        self, run: RecordedRun, mlflow: MlflowIds, extra: Mapping[str, str]
    ) -> LaunchSpec:
        """Return the specification that starts a run.

        Args:
            extra: Further environment variables.

        Raises:
            RadtError: It cannot be started in its environment.
            OSError: The same.
        """
        row = placed(run.plan, extra)
        env = _environment(row, run, mlflow, self.context) | dict(extra)
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
            home=self.context.home.path,
            variables=env,
            gpu_uuids=tuple(filter(None, env["CUDA_VISIBLE_DEVICES"].split(","))),
            cpus=self._cpus.get(row.letter),
            memory_bytes=row.resources.memory_bytes,
        )
        environment.prepare(launch, lambda text: self.say(f"{row.letter}: {text}"))
        command, variables = environment.command(launch), environment.variables(launch)
        if profiling is not None:
            if profiling.prefix and environment.container(launch):
                raise profiler_in_container(profiling.name)
            command = profiling.command(command)
        if name := environment.container(launch):
            self._containers.append(CreatedLedger().intend(Container(name), run_id=run.run_id))
        return LaunchSpec(
            command=command,
            env=env | variables,
            cpus=self._cpus.get(row.letter),
            kill_command=environment.kill_command(launch),
            ended=partial(environment.ended, launch),
            profiling=profiling,
        )

    def _build_environments(self) -> None:
        logs = self.context.home.path / "logs"
        for row in self._rows:
            with blame(row.letter):
                spec = environment_spec(row)
                if spec not in self._environments and not self.cancelled():
                    if spec.kind is not EnvironmentKind.LOCAL:
                        logs.mkdir(mode=0o700, exist_ok=True)
                    log = logs / f"environment-{self.workload.workload_id[:8]}-{row.letter}.log"
                    self._environments[spec] = build(
                        spec, log=log, say=self.say, cancelled=self.cancelled
                    )
        for run in self.workload.runs:
            with blame(run.plan.letter):
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
            return  # without GPU rows, the GPUs are not even queried
        requests = [DeviceRequest(row.letter, row.devices.gpus, row.collocation) for row in rows]
        try:
            if (plan := self._plan_devices(requests)) is None:
                return
            busy = self.context.options.busy
            wait_until_free(_devices_in_use(plan), busy, self.say, self.context.stop.wait)
            # The devices may have changed while this start waited.
            if (plan := self._plan_devices(requests)) is None:
                return
            run_ids = {run.plan.letter: run.run_id for run in self.workload.runs}
            devices = DeviceSetup(plan, run_ids=run_ids, workload_id=self.workload.workload_id)
            devices.set_up(self.say, self.cancelled)
            self.devices = devices
        except PlacementError as error:
            raise SetUpError(dict.fromkeys(error.keys, str(error))) from error
        except (DeviceError, UsageError) as error:  # UsageError: unusable runtime folder
            letters = [row.letter for row in rows if row.devices.gpus]
            raise SetUpError(dict.fromkeys(letters, str(error))) from error

    def _plan_devices(self, requests: Sequence[DeviceRequest]) -> DevicePlan | None:
        """Return the device plan once no other process blocks it; None if the user stops the wait.

        Raises:
            DeviceError: No plan exists, or it is blocked and the policy is not to wait.
        """
        announced = ""
        while not self.cancelled():
            try:
                return self._plan_now(requests)
            except PlacementError as error:
                if not error.may_pass or self.context.options.busy is not BusyPolicy.WAIT:
                    raise
                if error.message != announced:
                    announced = error.message
                    self.say(f"{announced}: waiting")
            self.context.stop.wait(PLACE_POLL_S)
        return None

    def _plan_now(self, requests: Sequence[DeviceRequest]) -> DevicePlan:
        gpus = Gpus.read()  # modes may have changed since this start
        plan = plan_here(requests, gpus)
        for warning in warnings({index for row in requests for index in row.gpus}, gpus.every):
            if warning not in self._warnings:
                self._warnings.append(warning)
                self.say(warning)
        return plan


#: Variables of the runner that must not reach a training process, which gets its own values.
_OWN_VARIABLES = (
    *VARIABLES_OF_A_RUN,
    *("MLFLOW_EXPERIMENT_NAME", MAX_TIME_VARIABLE, MAX_EPOCH_VARIABLE),
)


def _environment(
    row: RunPlan, run: RecordedRun, mlflow: MlflowIds, context: RunnerContext
) -> dict[str, str]:
    """Return the runner's environment plus the variables by which `radt.Run` and MLflow join a run.

    ``CUDA_VISIBLE_DEVICES`` lists the row's devices; it is empty for ``cpu``, so that a CPU run
    does not touch the GPUs. Scripts written for the original radT check ``RADT_PRESENT``.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    env |= {
        RUN_ID_VARIABLE: run.run_id,
        RUN_DIR_VARIABLE: str(run.run_dir.path),
        HOME_VARIABLE: str(context.home.path),
        "RADT_EXPERIMENT": row.experiment,
        "RADT_WORKLOAD": row.workload,
        "RADT_LETTER": row.letter,
        "RADT_NAME": row.label,
        "RADT_DEVICES": str(row.devices),
        "RADT_PRESENT": "True",
        "CUDA_VISIBLE_DEVICES": row.devices.cuda_visible_devices(context.machine),
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
    }
    mlflow_run_id = mlflow.runs.get(run.run_id)
    if mlflow.pending:
        env["MLFLOW_TRACKING_URI"] = env[MLFLOW_PENDING_VARIABLE] = context.tracking_uri
    if mlflow_run_id is not None:
        env["MLFLOW_TRACKING_URI"] = context.tracking_uri
        # Two variables, because MLflow deletes the first one after using it.
        env["MLFLOW_RUN_ID"] = env["RADT_MLFLOW_RUN_ID"] = mlflow_run_id
        if mlflow.experiment is not None:
            env["MLFLOW_EXPERIMENT_ID"] = mlflow.experiment
    return env


@contextmanager
def blame(letter: str) -> Iterator[None]:
    """Attribute errors inside the block to this row."""
    try:
        yield
    except (EnvironmentBuildError, DeviceError, UsageError) as error:
        raise SetUpError({letter: str(error)}) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise SetUpError({letter: f"{place}{error.strerror or error}"}) from error


def _devices_in_use(plan: DevicePlan) -> list[int | str]:
    """Return devices that others may be using: whole GPUs, and existing MIG devices."""
    devices: dict[int | str, None] = {}
    for share in plan.shares.values():
        if share.compute is None:
            devices |= dict.fromkeys(share.gpus)
        elif share.compute.uuid is not None:
            devices[share.compute.uuid] = None
    return list(devices)


def environment_spec(row: RunPlan) -> EnvironmentSpec:
    """Return the row's environment; a project's own is used unless the row names one.

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
