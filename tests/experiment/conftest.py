"""A machine, listeners and a folder with scripts for tests of experiment files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from radt.errors import ExperimentError, Problem
from radt.experiment.devices import Machine
from radt.experiment.file import ExperimentFile
from radt.experiment.plan import ExperimentPlan
from radt.listeners.api import Availability, Listener, Metric, Reading, Registry, Target
from radt.nvml import Gpu


class NoListener(Listener):
    """Is there to be chosen; nobody samples in these tests."""

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return ()

    def sample(self, targets: Sequence[Target]) -> Iterable[Reading]:
        raise AssertionError("nothing is sampled here")


@pytest.fixture
def registry() -> Registry:
    """The built-in listeners by name, and a plug-in that cannot be loaded."""
    return Registry({"top": NoListener, "smi": NoListener}, {"watts": "No module named 'watts'"})


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
