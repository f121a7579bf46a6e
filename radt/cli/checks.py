"""The checks of ``radt doctor``, one function per subject."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from radt import units
from radt.cli.recovery import leftover_processes, lost_runs
from radt.collector.client import CollectorClient
from radt.collector.protocol import CollectorStatus
from radt.collector.recovery import unfinished
from radt.collector.start import log_path, worker_lock
from radt.collocation.ledger import CreatedLedger
from radt.delivery.backlog import backlogs
from radt.devices.gpus import Gpus
from radt.devices.nvml import MPS_CONTROL
from radt.errors import CollectorError, RadtError
from radt.home import HOME_VARIABLE, Home, runtime_dir
from radt.processes import run_command
from radt.store.reader import StoreReader

CLEAN = "radt doctor --clean"

#: Free space below which a folder counts as full, and as nearly full.
_FULL_BYTES = 200_000_000
_LOW_BYTES = 5_000_000_000
_ANSWER_S = 5.0
_SOCKET_PATH_BYTES = 107


class CheckState(StrEnum):
    """The result of a check."""

    GOOD = auto()
    ABSENT = auto()  # missing, which is not a problem
    LOW = auto()  # works, but not for long
    WRONG = auto()


@dataclass(frozen=True, slots=True)
class Check:
    """One line: subject, state, text and remedy."""

    subject: str
    state: CheckState
    text: str
    remedy: str = ""

    @classmethod
    def failed(cls, subject: str, error: RadtError) -> Self:
        return cls(subject, CheckState.WRONG, error.message, error.remedy or "")


def python() -> Iterator[Check]:
    """Show the versions of Python and radt."""
    try:
        radt = version("radt")
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        radt = "from a source tree"
    text = f"{radt}, Python {platform.python_version()}, {sys.executable}"
    yield Check("radt", CheckState.GOOD, text)


def runtime_folder() -> Iterator[Check]:
    """Check the folder of sockets and locks."""
    try:
        folder = runtime_dir()
    except RadtError as error:
        yield Check.failed("runtime folder", error)
        return
    longest = folder.absolute() / "collector.sock"
    if len(os.fsencode(longest)) > _SOCKET_PATH_BYTES:
        yield Check(
            "runtime folder",
            CheckState.WRONG,
            f"{folder}: the path is too long for a socket",
            "Set RADT_RUNTIME_DIR to a folder with a short path",
        )
        return
    yield _space("runtime folder", folder, "Set RADT_RUNTIME_DIR to a folder with space")


def data_folder(home: Home) -> Iterator[Check]:
    """Check whether runs can be stored."""
    existing = home.path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    remedy = f"Set {HOME_VARIABLE} (or --home) to a folder you may write to"
    if not existing.is_dir():
        yield Check("data folder", CheckState.WRONG, f"{existing} is not a folder", remedy)
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Check("data folder", CheckState.WRONG, f"{existing} is not writable", remedy)
    else:
        remedy = f"Free space, or set {HOME_VARIABLE} (or --home) to a folder with space"
        yield _space("data folder", home.path, remedy, existing)


def _space(subject: str, folder: Path, remedy: str, existing: Path | None = None) -> Check:
    free_bytes = shutil.disk_usage(existing or folder).free
    state = CheckState.GOOD
    if free_bytes < _LOW_BYTES:
        state = CheckState.WRONG if free_bytes < _FULL_BYTES else CheckState.LOW
    note = "" if existing in (None, folder) else " (the first run creates it)"
    text = f"{folder}{note}, {units.size(free_bytes)} free"
    return Check(subject, state, text, "" if state is CheckState.GOOD else remedy)


def store(home: Home, collector: CollectorStatus | None) -> Iterator[Check]:
    """Check whether the store opens and its unended runs have a process."""
    if not home.store_path.exists():
        yield Check("store", CheckState.ABSENT, "none yet; the first run creates it")
        return
    try:
        with StoreReader(home.store_path) as reader:
            count = sum(summary.run_count for summary in reader.experiments())
            lost = lost_runs(reader, collector.runs if collector is not None else ())
    except RadtError as error:
        yield Check.failed("store", error)
        return
    size = units.size(home.store_path.stat().st_size)
    yield Check(
        "store", CheckState.GOOD, f"{home.store_path.name}, {units.plural(count, 'run')}, {size}"
    )
    for run in lost:
        name = f"{run.experiment} {run.workload}{run.letter}".strip()
        yield Check(
            "run",
            CheckState.WRONG,
            f"{run.run_id[:12]} ({name}) is {run.status} without a process",
            CLEAN,
        )


def check_unrecorded(home: Home, collector: CollectorStatus | None) -> Iterator[Check]:
    """Check whether runs have left journals that no collector reads."""
    recorded = collector.runs if collector is not None else ()
    if count := len(set(unfinished(home)).difference(recorded)):
        yield Check(
            "journals",
            CheckState.LOW,
            f"{units.plural(count, 'run')} with values that are not in the store yet",
            "The next run's collector reads them, or `radt sync` now",
        )


def uploads(home: Home) -> Iterator[Check]:
    """Check what is not uploaded yet, and why."""
    if not home.store_path.exists():
        return
    try:
        waiting = [
            each
            for each in backlogs(home.store_path, home.store_uri(tracking_uri=home.tracking_uri()))
            if each.waiting
        ]
    except RadtError as error:
        yield Check.failed("uploads", error)
        return
    for backlog in waiting:
        state = CheckState.WRONG if backlog.problem else CheckState.GOOD
        yield Check("uploads", state, backlog.sentence())


def collector_status() -> tuple[CollectorStatus | None, Check]:
    """Ask the collector for its status; do not start one."""
    try:
        with CollectorClient(start=False, timeout_s=_ANSWER_S, patience_s=_ANSWER_S) as client:
            status = client.status()
    except CollectorError as error:
        return None, _no_collector(error)
    except RadtError as error:  # no runtime folder, which is reported elsewhere
        return None, Check("collector", CheckState.ABSENT, error.message)
    text = (
        f"pid {status.pid}, up {units.duration(status.uptime_s)}, "
        f"{units.plural(len(status.runs), 'run')} recorded, {units.size(status.rss_bytes)}"
    )
    if status.problems:
        return status, Check(
            "collector", CheckState.WRONG, "; ".join(status.problems), f"See {log_path()}"
        )
    if status.guardian_pid is None:
        text += "; no guardian restarts it after a crash"
        return status, Check("collector", CheckState.LOW, text, "The next run starts a guardian")
    return status, Check("collector", CheckState.GOOD, text)


def _no_collector(error: CollectorError) -> Check:
    lock = worker_lock()
    try:
        holder = lock.holder()
    finally:
        lock.close()
    if holder is None:
        return Check("collector", CheckState.ABSENT, "not running; the next run starts it")
    return Check(
        "collector",
        CheckState.WRONG,
        f"pid {holder} is running but does not answer: {error.message}",
        error.remedy or f"See {log_path()}",
    )


@dataclass(frozen=True, slots=True)
class _Tool:
    """Programs of which one is enough, what needs them, and how to get one."""

    subject: str
    names: tuple[str, ...]
    purpose: str
    remedy: str


_TOOLS = (
    _Tool("nvidia-smi", ("nvidia-smi",), "GPU status", "install NVIDIA's driver"),
    _Tool("MPS", (MPS_CONTROL,), "Collocation MPS", "install NVIDIA's driver"),
    _Tool("docker", ("docker",), "Environment docker:…", "docs.docker.com/engine/install"),
    _Tool("uv", ("uv",), "Environment uv:…", "pip install uv"),
    _Tool(
        "conda",
        ("conda", "mamba", "micromamba"),
        "Environment conda:…",
        "mamba.readthedocs.io/en/latest/installation",
    ),
    _Tool("git", ("git",), "recording the version of your code", "git-scm.com"),
)


def tools() -> Iterator[Check]:
    """Check the programs that some experiments need."""
    for tool in _TOOLS:
        path = next(filter(None, map(shutil.which, tool.names)), None)
        if path is None:
            text = f"{' or '.join(tool.names)} not found; needed for {tool.purpose}"
            yield Check(tool.subject, CheckState.ABSENT, text, tool.remedy)
        elif tool.subject == "docker" and (problem := _docker_problem(path)):
            yield Check(tool.subject, CheckState.LOW, problem, "Start docker, or join its group")
        else:
            yield Check(tool.subject, CheckState.GOOD, path)


def _docker_problem(path: str) -> str:
    """Return why docker's daemon cannot be used; empty if it can."""
    try:
        done = run_command([path, "version", "--format", "{{.Server.Version}}"], _ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not answer: {error}"
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else "its daemon does not answer") if done.returncode else ""


def nvml() -> Iterator[Check]:
    """Check whether the NVIDIA driver works."""
    gpus = Gpus.read()
    remedy = "Run nvidia-smi for the driver's message; a new driver may need a restart"
    if gpus.working:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus.working))
        text = f"driver {gpus.driver}, {units.plural(len(gpus.working), 'GPU')} ({names})"
        yield Check("NVML", CheckState.GOOD, text)
    if gpus.failure:
        yield Check("NVML", CheckState.WRONG, gpus.failure, remedy)
    elif not gpus.every:
        yield Check("NVML", CheckState.ABSENT, f"no GPU: {gpus.reason}")


def leftovers() -> Iterator[Check]:
    """List what dead runners left on the machine."""
    try:
        ledger = CreatedLedger()
        entries, damaged = ledger.entries(), ledger.damaged()
    except RadtError:  # no runtime folder, which is reported elsewhere
        return
    for entry in entries:
        if entry.orphaned:
            text = f"{entry.thing} of a dead runner"
            yield Check("left behind", CheckState.WRONG, text, CLEAN)
    for file in damaged:
        text = f"{file.path} cannot be read ({file.reason})"
        remedy = "See `radt devices` for MIG instances and unused daemons, then delete it"
        yield Check("left behind", CheckState.WRONG, text, remedy)
    processes = leftover_processes()
    for process in processes:
        yield Check("left behind", CheckState.WRONG, f"{process}, which has ended", CLEAN)
    if not processes and not damaged and not any(entry.orphaned for entry in entries):
        used = f", {units.plural(len(entries), 'object')} in use" if entries else ""
        yield Check("left behind", CheckState.GOOD, f"nothing{used}")
