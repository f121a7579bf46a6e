"""Check how rows share a GPU: naively, under MPS, on MIG instances, as radt decides; and advice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.client import Facts
from benchmarks.gpu_check.model import NotPossibleError, Result, Setting
from radt.collocation.inventory import read_inventory
from radt.devices.gpus import Gpus
from radt.devices.nvml import MPS_CONTROL
from radt.home import Home
from radt.listeners.gpm import GpmListener
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.units import significant, size

_ROOT = Path(__file__).parents[2]
_REFUSED = 2
#: Of the SMs of a client with this percentage of the GPU's, at most one TPC more or less.
_PERCENTAGE = 40
_TPC_SMS = 2
#: Of two kinds in s after 50 ms of work on an H100, so that there is room for a second row.
_WAITS_S = (0.05, 0.1)


@dataclass(frozen=True)
class Study:
    """An experiment that has run: what its runs saw and their ``radt.verified``, and its store."""

    name: str
    facts: tuple[Facts, ...]
    verified: tuple[str, ...]
    problems: tuple[str, ...]
    home: Path

    @property
    def together_s(self) -> float:
        """How long all of them worked at the same time."""
        begun_s = max((one.begun_s for one in self.facts), default=0.0)
        return min((one.ended_s for one in self.facts), default=0.0) - begun_s

    def evidence(self) -> str:
        """Return where they ran, how long together, and how fast."""
        devices = " and ".join(sorted({one.device for one in self.facts})) or "no device"
        speeds = " and ".join(f"{significant(one.flop_per_s / 1e12)}" for one in self.facts)
        return f"on {devices}, {self.together_s:.1f} s side by side, {speeds} TFLOP/s"


def naive(setting: Setting) -> Result:
    """Run two rows on the GPU."""
    study = _run(setting, "naive", ["-", "-"], gpu=setting.gpu)
    expected = {_bare(setting.the_gpu().uuid)}
    return Result.of(study.evidence(), [*study.problems, *_on_other_devices(study, expected)])


def mps(setting: Setting) -> Result:
    """Run a row with all of the GPU's SMs and one with a part of them."""
    study = _run(setting, "mps", ["MPS", f"MPS:{_PERCENTAGE}"], gpu=setting.gpu)
    problems = [*study.problems, *_on_other_devices(study, {_bare(setting.the_gpu().uuid)})]
    if not all(one.is_client for one in study.facts):
        problems.append("not all are in the client list of their daemon")
    if set(study.verified) != {"yes"}:
        problems.append(f"radt.verified is {', '.join(study.verified)}")
    parts = sorted(study.facts, key=lambda one: one.percentage is not None)
    percentages = [one.percentage for one in parts]
    if percentages != [None, str(_PERCENTAGE)]:
        problems.append(f"their percentages are {percentages}")
    sms = [one.sms for one in parts]
    match sms:
        case [int(every), int(part)]:
            if abs(part - every * _PERCENTAGE / 100) > _TPC_SMS:
                problems.append(f"{_PERCENTAGE} % of {every} SMs is not {part}")
            shares = f"{every} and {part} SMs"
        case _:
            shares = "SMs unknown"
    return Result.of(f"{shares} with 100 and {_PERCENTAGE} %, {study.evidence()}", problems)


def mig(setting: Setting) -> Result:
    """Run two rows on the smallest instances of a GPU in MIG mode."""
    gpus = [gpu for gpu in read_inventory().gpus if gpu.mig_enabled]
    if not gpus:
        raise NotPossibleError(
            f"no GPU is in MIG mode; an administrator can run nvidia-smi -i {setting.gpu} -mig 1"
        )
    before = _mig_uuids()
    assert gpus[0].mig is not None
    profiles = [profile for profile in gpus[0].mig.profiles if profile.max_count > 1]
    if not profiles:
        raise NotPossibleError(f"{gpus[0]} shows no profile of several instances")
    profile = min(profiles, key=lambda one: (one.slices, one.memory_mb, one.ofas))
    part = profile.slices / max(one.slices for one in gpus[0].mig.profiles)
    study = _run(setting, "mig", [profile.name] * 2, gpu=gpus[0].index, work=part)
    problems = list(study.problems)
    if len({one.device for one in study.facts}) != len(study.facts):
        problems.append("both had the same device")
    if _mig_uuids() != before:
        problems.append("the instances are not those of before")
    memories = {size(one.memory_bytes) for one in study.facts if one.memory_bytes is not None}
    has = f" of {' and '.join(sorted(memories))}" if memories else ""
    return Result.of(f"2 × {profile.name}{has}, {study.evidence()}", problems)


def advise(setting: Setting) -> Result:
    """Ask for advice on a program that ran alone twice and once beside itself."""
    study = _run(setting, "advise", ["-", "-", "-", "-"], [1, 2, 3, 3], gpu=setting.gpu)
    if study.problems:
        return Result.of(study.evidence(), study.problems)
    command = ["advise", study.name, "--format", "json", "--home", str(study.home)]
    done = _radt(setting, *command)
    if done.returncode:
        return Result.of(study.evidence(), [f"radt advise: {_last_lines(done.stderr)}"])
    advice = json.loads(done.stdout)
    found = [f"{one['for']}: {one['reason']}" for one in advice["recommendations"]]
    missing = [] if found else ["there is no recommendation", *advice["missing"], *advice["notes"]]
    return Result.of("; ".join([*found, study.evidence()]), missing)


def auto(setting: Setting) -> Result:
    """Have radt group six rows of two kinds, neither of which fills the GPU."""
    waits_s = 3 * _WAITS_S
    cells, labels = [""] * len(waits_s), ["auto"] * len(waits_s)
    study = _run(setting, "auto", cells, labels, gpu=setting.gpu, work=0.5, waits_s=waits_s)
    groups: dict[str, list[RunRecord]] = {}
    kinds: dict[str, list[RunRecord]] = {}
    with StoreReader(Home(study.home).store_path) as store:
        runs = store.runs()
        params = store.params_of([run.run_id for run in runs])
    for run in runs:
        groups.setdefault(run.workload_id, []).append(run)
        kinds.setdefault(params[run.run_id]["Params"], []).append(run)
    numbers = f"groups of {', '.join(str(len(group)) for group in groups.values())} rows"
    if study.problems:
        return Result.of(numbers, study.problems)
    shared = [run for group in groups.values() if len(group) > 1 for run in group]
    problems = [] if shared else ["no rows ran together"]
    if any(len(groups[kind[0].workload_id]) > 1 for kind in kinds.values()):
        problems.append("a kind did not run alone first")
    ways = {run.collocation for run in shared}
    if shutil.which(MPS_CONTROL) and ways - {"MPS"}:
        problems.append("not all of them were under MPS")
    # Both are without radt's own time between workloads.
    serial_s = sum(len(kind) * (kind[0].lasted_s() or 0.0) for kind in kinds.values())
    took_s = sum(map(_span_s, groups.values()))
    if setting.has_cuda and took_s >= serial_s:
        problems.append("it was not faster")
    times = f"{took_s:.1f} s, one after the other {serial_s:.1f} s"
    return Result.of(f"{numbers}, sharing {' and '.join(ways) or '-'}; {times}", problems)


def _span_s(runs: Sequence[RunRecord]) -> float:
    """Return the time from the start of the first run to the end of the last one."""
    begun_ns = min(run.origin_ns for run in runs)
    return max((run.ended_ns or begun_ns) - begun_ns for run in runs) / 1e9


def _run(
    setting: Setting,
    name: str,
    cells: Sequence[str],
    workloads: Sequence[int | str] | None = None,
    *,
    gpu: int,
    work: float = 1.0,
    waits_s: Sequence[float] = (),
) -> Study:
    """Run an experiment with a row for each Collocation cell.

    Args:
        setting: Where.
        name: Its name.
        cells: Collocation of each row.
        workloads: Their workloads; None if all are together.
        gpu: Their GPU.
        work: Share of its usual work that the program does.
        waits_s: How long each of them waits after a burst of steps; empty for no waits.

    Raises:
        NotPossibleError: radt refuses it before the start; the message is radt's.
    """
    folder, home = Path(setting.folder, name), Path(setting.folder, f"{name}-data")
    folder.mkdir()
    path = folder / f"{name}.csv"
    listeners = "smi+gpm+top" if GpmListener.probe().available else "smi+top"
    labels, waits_s = workloads or [1] * len(cells), waits_s or [0.0] * len(cells)
    program, params = "-m benchmarks.gpu_check.client", f"{setting.device} {folder} {work}"
    rows = [
        [label, gpu, cell, listeners, program, f"{params} {wait_s}"]
        for label, cell, wait_s in zip(labels, cells, waits_s, strict=True)
    ]
    with path.open("w", newline="") as file:
        names = ["Workload", "Devices", "Collocation", "Listeners", "File", "Params"]
        csv.writer(file).writerows([names, *rows])
    options = ("--yes", "--sync", "context", "--tracking-uri", "none")
    done = _radt(setting, "run", str(path), *options, "--home", str(home))
    if done.returncode == _REFUSED:
        raise NotPossibleError(_last_lines(done.stderr))
    with StoreReader(Home(home).store_path) as store:
        runs = store.runs()
        verified = tuple(store.tags(run.run_id).get("radt.verified", "absent") for run in runs)
    found = [json.loads(each.read_text()) for each in folder.glob("*.json")]
    problems = [
        f"run {run.letter} is {run.status}" for run in runs if run.status is not RunStatus.FINISHED
    ]
    if done.returncode:
        problems.append(f"radt run ended with exit code {done.returncode}")
    facts = tuple(Facts(**one) for one in found)
    study = Study(name, facts, verified, tuple(problems), home)
    if workloads is None and not problems and study.together_s <= 0:
        return Study(name, facts, verified, ("they did not run side by side",), home)
    return study


def _radt(setting: Setting, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run radt to its end, also after Ctrl-C, which radt gets, too: it removes what it created."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "radt", *arguments]
    with subprocess.Popen(
        command,
        cwd=setting.folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate()
        except KeyboardInterrupt:
            process.communicate()
            raise
    print(out, err, file=sys.stderr)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _on_other_devices(study: Study, expected: set[str]) -> list[str]:
    others = {one.device for one in study.facts if _bare(one.device) not in expected}
    return [f"a run was on {device}" for device in sorted(others)]


def _bare(uuid: str) -> str:
    """Return a UUID as PyTorch has it, without its kind."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _mig_uuids() -> set[str]:
    return {mig.uuid for gpu in Gpus.read().every for mig in gpu.mig_devices}


def _last_lines(text: str) -> str:
    return " ".join(text.split())[-400:]
