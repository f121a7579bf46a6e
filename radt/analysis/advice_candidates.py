"""Candidates for sharing: copies of a model, mixes of several models, and named workloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product
from pathlib import Path

from radt.analysis.advice_facts import Facts, MigGpu
from radt.analysis.advice_measurements import Measurements
from radt.analysis.advice_model import Candidate, Fit, Method, Origin, Resource, Row, Solo
from radt.analysis.baselines import BaselineKey, Work, ignored_params, work_of
from radt.analysis.memory_fit import fits_alone
from radt.collocation.spec import Collocation, Mps
from radt.devices.machine import Devices, Machine
from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.check import positions_of, read_header
from radt.experiment.columns import Column
from radt.experiment.plan import RunPlan
from radt.experiment.row import Place, RowCheck
from radt.experiment.row import Row as FileRow
from radt.experiment.source import ExperimentFile
from radt.listeners import registry
from radt.nvml import Gpu

#: Degrees of the thesis's measurements: what 3g, 2g and 1g instances allow, and four.
COPIES = (2, 3, 4, 7)
#: "We limit the amount of collocated models to four" (Robroek 2024, section 4.3.4).
MAX_MIX = 4
#: More models on a device have hundreds of mixes; then only measured or planned mixes are
#: considered.
MAX_MIXED_MODELS = 5


def candidates_of(
    measurements: Measurements, named: Iterable[Candidate], *, separate: bool, margin: float
) -> list[Candidate]:
    """Return the candidates to predict, each once.

    Args:
        measurements: Measurements of the experiment.
        named: Workloads of the experiment's file.
        separate: Only candidates that isolate runs: MIG.
        margin: Share of an instance's memory to keep free.
    """
    by_identity: dict[object, Candidate] = {}
    measured = [workload.candidate for workload in measurements.measured]
    for candidate in (*measured, *named, *_made(measurements, separate=separate, margin=margin)):
        known = by_identity.get(candidate.identity)
        if known is None:
            by_identity[candidate.identity] = candidate
        elif candidate.labels:
            labels = tuple(dict.fromkeys((*known.labels, *candidate.labels)))
            by_identity[candidate.identity] = replace(known, labels=labels)
    return list(by_identity.values())


def by_place(solos: Iterable[Solo]) -> dict[tuple[str, str], list[Solo]]:
    """Group models by machine and devices: only models of one group can share."""
    groups: dict[tuple[str, str], list[Solo]] = {}
    for solo in solos:
        groups.setdefault((solo.host, solo.devices), []).append(solo)
    return groups


def mixed_too_many(measurements: Measurements) -> list[str]:
    """Return sentences on the devices with too many models to try their mixes."""
    return [
        f"{len(solos):,} models on {devices} are too many to try every mix. radt considers only "
        "mixes that were measured or are in the file"
        for (_, devices), solos in by_place(measurements.solos.values()).items()
        if len(solos) > MAX_MIXED_MODELS
    ]


def _made(measurements: Measurements, *, separate: bool, margin: float) -> Iterator[Candidate]:
    for (host, devices), solos in by_place(measurements.solos.values()).items():
        for together in _groups(solos):
            origin = Origin.COPIES if len(set(map(id, together))) == 1 else Origin.MIX
            yield from _ways(together, origin, measurements.facts, host, devices, separate, margin)


def _groups(solos: Sequence[Solo]) -> Iterator[tuple[Solo, ...]]:
    for solo in solos:
        if not solo.cpus or solo.own_cpus is not None:  # copies would all be on the same CPUs
            for count in COPIES:
                yield (solo,) * count
    if len(solos) <= MAX_MIXED_MODELS:
        for count in range(2, MAX_MIX + 1):
            for mix in combinations_with_replacement(solos, count):
                if len(set(map(id, mix))) > 1:
                    yield mix


def _ways(
    solos: tuple[Solo, ...],
    origin: Origin,
    facts: Facts,
    host: str,
    devices: str,
    separate: bool,
    margin: float,
) -> Iterator[Candidate]:
    """Yield the same runs naively, under MPS, and on MIG instances."""
    plain = Candidate(tuple(Row(solo) for solo in solos), origin)
    if plain.method is Method.CPU:
        if not separate:
            yield plain
        return
    device = facts.device(host, devices)
    if not separate:
        yield plain
        if device.has_mps is not False:
            yield Candidate(tuple(Row(solo, Collocation(mps=Mps())) for solo in solos), origin)
    if device.mig_gpu is not None:
        divided = _divided(solos, origin, device.mig_gpu, margin)
        if divided is not None:
            yield divided


def _divided(
    solos: tuple[Solo, ...], origin: Origin, mig_gpu: MigGpu, margin: float
) -> Candidate | None:
    """Return the runs on MIG instances of one GPU, the largest for those that need most.

    Runs of one model get the same profile. Among the assignments with enough memory, the best one
    squeezes the most squeezed run least, then all runs together.
    """
    models = list(dict.fromkeys(solo.key for solo in solos))
    by_key = {solo.key: solo for solo in solos}
    choices: list[list[str]] = []
    for key in models:
        row = Row(by_key[key])
        names = [profile.name for profile in mig_gpu.plain()]
        pool = [name for name in names if fits_alone(row, mig_gpu, name, margin) is not Fit.NO]
        choices.append(pool)
    best: tuple[float, float, dict[BaselineKey, str]] | None = None
    for assigned in product(*choices):
        chosen = dict(zip(models, assigned, strict=True))
        if not mig_gpu.packs([chosen[solo.key] for solo in solos]):
            continue
        squeezed = [_squeezed(solo, mig_gpu, chosen[solo.key]) for solo in solos]
        rank = (max(squeezed), sum(squeezed))
        if best is None or rank < best[:2]:
            best = (*rank, chosen)
    if best is None:
        return None
    return Candidate(
        tuple(Row(solo, Collocation.parse(best[2][solo.key])) for solo in solos), origin
    )


def _squeezed(solo: Solo, mig_gpu: MigGpu, profile: str) -> float:
    """Return the SMs that a run uses alone over those of the profile."""
    instance = mig_gpu.profile(profile)
    assert instance is not None
    wanted = solo.shares.get(Resource.KERNEL, solo.shares.get(Resource.SM, 1.0))
    return wanted * mig_gpu.slices / instance.slices


#: Of experiment files; sweeps have no workloads of several runs.
SUFFIX = ".csv"
_MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows of a file by workload.

    ``anywhere`` are the lines of rows without a device; the store knows where they ran.
    """

    path: Path | None = None
    experiment: str = ""
    workloads: Mapping[str, Sequence[RunPlan]] = field(default_factory=dict)
    anywhere: frozenset[int] = frozenset()

    def candidates(self, measurements: Measurements) -> list[Candidate]:
        """Return the workloads of several rows, on each machine where all models ran alone."""
        candidates = []
        for label, rows in self.workloads.items():
            if len(rows) < 2:
                continue
            for host in _hosts(measurements):
                solos = [self._solo(row, host, measurements) for row in rows]
                known = [solo for solo in solos if solo is not None]
                if len(known) == len(rows):
                    together = tuple(
                        Row(solo, row.collocation) for solo, row in zip(known, rows, strict=True)
                    )
                    candidates.append(Candidate(together, Origin.FILE, (label,)))
        return candidates

    def missing(self, measurements: Measurements) -> dict[BaselineKey, str]:
        """Return the names of models that ran alone on no machine, by key.

        Rows without a device are left out if `Measurements.missing` has their model.
        """
        hosts = _hosts(measurements) or [""]
        ran = {key[:2] for key in measurements.missing}
        return {
            BaselineKey(*_model(row), hosts[0]): row.label
            for rows in self.workloads.values()
            for row in rows
            if not any(self._solo(row, host, measurements) for host in hosts)
            and not (row.line in self.anywhere and _model(row)[:2] in ran)
        }

    def rows(self) -> dict[tuple[str, Work, str], RunPlan]:
        """Return a row of each model, by file, parameters and devices."""
        return {_model(row): row for rows in self.workloads.values() for row in rows}

    def _solo(self, row: RunPlan, host: str, measurements: Measurements) -> Solo | None:
        solo = measurements.solos.get(BaselineKey(*_model(row), host))
        if solo is not None or row.line not in self.anywhere:
            return solo
        same = (
            solo
            for key, solo in measurements.solos.items()
            if key[:2] == _model(row)[:2] and key.hardware == host
        )
        return next(same, None)


def read_planned(path: Path) -> PlannedRows:
    """Read an experiment's CSV file.

    Raises:
        ExperimentError: The file has problems.
        UsageError: It is not a CSV file, or has several experiments.
    """
    if path.suffix.lower() != SUFFIX:
        raise UsageError(
            f"{path} is not a {SUFFIX} file", "Name the experiment: its runs are in the store"
        )
    file = ExperimentFile.read(path)
    here = Machine.detect()
    place = Place.beside(file.path, _with_any_gpu(here), registry.load())
    first = str(Devices.parse("", here))
    header = read_header(file.shown, file.table)
    keys = [
        (
            header.value(record, Column.EXPERIMENT).strip() or place.default_experiment,
            header.value(record, Column.WORKLOAD).strip(),
        )
        for record in file.table.rows
    ]
    problems: list[Problem] = []
    workloads: dict[str, list[RunPlan]] = {}
    anywhere: set[int] = set()
    for record, position in zip(file.table.rows, positions_of(keys), strict=True):
        values = header.values(record)
        if not values.get(Column.DEVICES, "").strip():
            anywhere.add(record.line)
            values = {**values, Column.DEVICES: first}

        def complain(column: Column, error: UsageError, line: int = record.line) -> None:
            problems.append(Problem(error.message, error.remedy or "", line, column))

        row = FileRow(values, header.logged(record), record.line)
        run = RowCheck(row, position, place, complain).run()
        if run is not None:
            workloads.setdefault(position.workload, []).append(run)
    if problems:
        raise ExperimentError(file.shown, problems)
    names = list(dict.fromkeys(name for name, _ in keys))
    if len(names) != 1:
        raise UsageError(
            f"{path} has {len(names)} experiments", "Name one of them: " + ", ".join(names)
        )
    return PlannedRows(path, names[0], workloads, frozenset(anywhere))


def _with_any_gpu(here: Machine) -> Machine:
    """Return this machine with every GPU that a row may name: the rows are not run here."""
    by_index = {gpu.index: gpu for gpu in (*here.gpus, *here.hidden)}
    gpus = tuple(by_index.get(index, Gpu(index, "", f"GPU-{index}")) for index in range(_MAX_GPUS))
    return replace(here, gpus=gpus, hidden=(), no_gpu_reason="")


def _model(row: RunPlan) -> tuple[str, Work, str]:
    """Return file, parameters and devices as the runner records them (`BaselineKey`)."""
    return (
        row.program.recorded,
        work_of(row.arguments, ignored_params()),
        str(row.devices),
    )


def _hosts(measurements: Measurements) -> list[str]:
    return list(dict.fromkeys(solo.host for solo in measurements.solos.values()))
