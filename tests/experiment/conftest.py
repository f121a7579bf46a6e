"""A machine, listeners and a folder with scripts for tests of experiment files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from radt.devices.gpus import Gpu
from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile
from radt.listeners.api import (
    Availability,
    Listener,
    Metric,
    ProfiledRun,
    Profiler,
    Reading,
    Registry,
    Target,
)


class NoListener(Listener):
    """Is there to be chosen; nobody samples in these tests."""

    name = "smi"

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return ()

    def sample(self, targets: Sequence[Target]) -> Iterable[Reading]:
        raise AssertionError("nothing is sampled here")


class Everywhere(NoListener):
    """Runs that name no listeners get this one."""

    name = "top"
    by_default = True


class Elsewhere(NoListener):
    """Runs that name no listeners would get this one, if it worked here."""

    name = "dcgm"
    by_default = True

    @classmethod
    def probe(cls) -> Availability:
        return Availability(False, "no hostengine answers", "Start nv-hostengine")


class Broken(NoListener):
    """Breaks the contract of listeners."""

    name = "ps"

    @classmethod
    def probe(cls) -> Availability:
        raise RuntimeError("no /proc")


class Prefixing(Profiler):
    """Goes before the command."""

    name = "nsys"

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)

    def prefix(self, run: ProfiledRun) -> Sequence[str]:
        raise AssertionError("nothing is started here")


class Uninstalled(Prefixing):
    name = "ncu"

    @classmethod
    def probe(cls) -> Availability:
        return Availability(False, "ncu is not on PATH", "Install Nsight Compute")


class Inside(Profiler):
    """Works from inside the training process, and costs it next to nothing."""

    name = "torch"
    disturbs = False

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)


@pytest.fixture
def registry() -> Registry:
    """Listeners and profilers by name, and a plug-in that cannot be loaded."""
    return Registry(
        {kind.name: kind for kind in (Everywhere, NoListener, Elsewhere, Broken)},
        {kind.name: kind for kind in (Prefixing, Uninstalled, Inside)},
        {"watts": "No module named 'watts'"},
    )


@pytest.fixture
def cpu_only() -> Machine:
    return Machine(cpu_cores=2, no_gpu_reason="no NVIDIA driver")


@pytest.fixture
def two_gpus() -> Machine:
    gpus = (Gpu(0, "H200", "GPU-aaaa-1"), Gpu(1, "H200", "GPU-bbbb-2"))
    return Machine(cpu_cores=16, gpus=gpus)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with ``train.py`` in it, at a path with a blank, a quote and a non-ASCII letter."""
    folder = tmp_path / "it's ä folder"
    folder.mkdir()
    (folder / "train.py").touch()
    return folder


@pytest.fixture
def write(folder: Path) -> Callable[[str | bytes], Path]:
    """Writes an experiment file and returns its path."""

    def write_file(content: str | bytes) -> Path:
        path = folder / "experiment.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def plan(
    write: Callable[[str | bytes], Path], cpu_only: Machine, registry: Registry
) -> Callable[..., ExperimentPlan]:
    """The plan of a file with this content, on a machine without GPU unless one is given."""

    def plan_of(content: str | bytes, machine: Machine = cpu_only) -> ExperimentPlan:
        return ExperimentFile.read(write(content)).plan(machine, registry)

    return plan_of


@pytest.fixture
def problems(
    plan: Callable[..., ExperimentPlan], cpu_only: Machine
) -> Callable[..., list[Problem]]:
    """The problems of a file with this content; the test fails if there are none."""

    def problems_of(content: str | bytes, machine: Machine = cpu_only) -> list[Problem]:
        with pytest.raises(ExperimentError) as caught:
            plan(content, machine)
        return list(caught.value.problems)

    return problems_of
