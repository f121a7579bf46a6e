"""The world of one round: a data folder, a runtime folder, a database, training scripts."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from radt.home import Home
from radt.procfs import process_stat
from tests.chaos.truth import SCRIPT, Log, read_logs
from tests.support.bench import RADT, mlflow_database
from tests.support.disk import SmallDisk
from tests.support.waiting import wait_until

#: The disk that holds the data folder, where root may mount one.
DISK_BYTES = 256 << 20
INODES = 20_000
_TRAIN = "train.py"


@dataclass(frozen=True)
class Process:
    """A process of the round."""

    pid: int
    command: str

    def signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass  # it has ended by itself


@dataclass
class World:
    """What one round consists of.

    Args:
        folder: Where scripts, truth and messages are; no fault touches it.
        home: The data folder.
        runtime: The runtime folder.
        store_uri: The Postgres database that is copied to.
        flush_s: How often the collector reads journals.
        disk: What the data folder lies on, if that is a disk of its own.
    """

    folder: Path
    home: Home
    runtime: Path
    store_uri: str
    flush_s: float
    disk: SmallDisk | None
    scripts: list[subprocess.Popen[bytes]] = field(default_factory=list)
    runner: subprocess.Popen[bytes] | None = None

    @property
    def truth(self) -> Path:
        return self.folder / "truth"

    @property
    def env(self) -> dict[str, str]:
        mine = {
            "RADT_HOME": str(self.home.path),
            "RADT_RUNTIME_DIR": str(self.runtime),
            "RADT_STORE_URI": self.store_uri,
            "RADT_COLLECTOR_IDLE_S": "2",
            "RADT_FLUSH_S": str(self.flush_s),
            "RADT_ARCHIVE_S": "0",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RADT_", "MLFLOW_"))}
        return kept | mine

    # What is tried ------------------------------------------------------------------------------

    def start_scripts(self, sizes: list[tuple[int, int]]) -> None:
        """Start bare scripts, each with a seed and a number of values."""
        for number, (seed, values) in enumerate(sizes):
            command = [sys.executable, str(self._script()), str(self.truth), f"{seed}", f"{values}"]
            self.scripts.append(self._start(command, f"script{number}"))

    def start_experiment(self, sizes: list[tuple[int, int]], *, together: bool) -> None:
        """Start an experiment file with a row for each seed and number of values."""
        self._script()
        lines = ["Experiment,Workload,Name,Devices,Listeners,File,Params"]
        for number, (seed, values) in enumerate(sizes):
            workload = 1 if together else number + 1
            row = f"chaos,{workload},row{number},cpu,top@200ms,{_TRAIN}"
            lines.append(f"{row},{self.truth} {seed} {values}")
        (self.folder / "chaos.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.runner = self._start([RADT, "chaos.csv", "--yes"], "runner")

    @property
    def started(self) -> list[subprocess.Popen[bytes]]:
        return [*self.scripts, *([self.runner] if self.runner else [])]

    @property
    def over(self) -> bool:
        """Whether everything that was started has ended, also what a dead runner left."""
        return all(one.poll() is not None for one in self.started) and not self.training()

    def logs(self) -> list[Log]:
        return read_logs(self.truth)

    def sync(self) -> subprocess.CompletedProcess[str]:
        """Upload what is pending; its output is kept beside the others'."""
        done = subprocess.run(
            [RADT, "sync"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
        )
        with (self.folder / "sync.out").open("a", encoding="utf-8") as file:
            file.write(f"{done.stdout}\nexit code {done.returncode}\n")
        return done

    def messages(self) -> dict[str, str]:
        """What each process that was started said, by its name."""
        return {
            file.stem: file.read_text(encoding="utf-8", errors="replace")
            for file in self.folder.glob("*.out")
        }

    # Processes ----------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """All live processes that belong to the round."""
        mine = f"RADT_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mine not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8")
            except OSError:
                continue
            if command:
                found.append(Process(int(entry.name), command))
        return found

    def training(self) -> list[Process]:
        return [one for one in self.processes() if f"{self.truth} " in one.command]

    def workers(self) -> list[Process]:
        return self._having("-m radt.collector.worker")

    def guardians(self) -> list[Process]:
        return self._having("-m radt.collector ")

    def deliverers(self) -> list[Process]:
        return self._having("-m radt.delivery")

    def keepers(self) -> list[Process]:
        """The two parents of each row's script."""
        found = []
        for script in self.training():
            stat = process_stat(script.pid)
            while stat is not None and stat.parent > 1:
                command = _command(stat.parent)
                if "keeper.py" not in command:
                    break
                found.append(Process(stat.parent, command))
                stat = process_stat(stat.parent)
        return found

    def runners(self) -> list[Process]:
        if self.runner is None or self.runner.poll() is not None:
            return []
        return [Process(self.runner.pid, "runner")]

    def end_all(self) -> None:
        """Kill what is left, and see it gone."""

        def gone() -> bool:
            left = [*self.keepers(), *self.processes()]
            for one in left:
                one.signal(signal.SIGKILL)
            for process in self.started:
                process.poll()
            return not left

        wait_until(gone, "the end of the round's processes")

    def _having(self, words: str) -> list[Process]:
        return [one for one in self.processes() if words in one.command]

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("wb") as out:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _script(self) -> Path:
        self.truth.mkdir(exist_ok=True)
        path = self.folder / _TRAIN
        path.write_text(SCRIPT, encoding="utf-8")
        return path


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8")
    except OSError:
        return ""


def can_mount() -> bool:
    """Whether a disk can be mounted for a round."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory(prefix="radt-") as place:
        if _mount(Path(place)):
            return False
        subprocess.run(["umount", "--lazy", place], check=True)
    return True


def _mount(path: Path) -> int:
    options = f"size={DISK_BYTES},nr_inodes={INODES},mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def new_world(
    folder: Path, store_uri: str, flush_s: float, *, disk: bool, begun: bool
) -> Iterator[World]:
    """A world whose processes, disk and runtime folder are gone afterwards.

    Args:
        folder: An empty folder; it stays, for whoever looks into a finding.
        store_uri: An empty Postgres database.
        flush_s: How often the collector reads journals.
        disk: Whether the data folder lies on a disk of its own.
        begun: Whether MLflow's database is there already.
    """
    runtime = Path(tempfile.mkdtemp(prefix="radt-chaos-"))
    place = folder / "home"
    place.mkdir(parents=True)
    mounted = disk and _mount(place) == 0
    small = SmallDisk(place) if mounted else None
    world = World(folder, Home(place / "radt-data"), runtime, store_uri, flush_s, small)
    if begun:
        shutil.copyfile(mlflow_database(), world.home.create().path / "mlflow.db")
    try:
        yield world
    finally:
        try:
            world.end_all()
            if mounted:
                # What a finding is about is in it; what is damaged or on its way cannot be copied.
                with suppress(shutil.Error):
                    shutil.copytree(place, folder / "home.kept", ignore_dangling_symlinks=True)
        finally:
            if mounted:
                _unmount(place)
        with suppress(shutil.Error):  # a collector that still ends takes files away meanwhile
            shutil.copytree(runtime, folder / "runtime.kept", ignore=_sockets, dirs_exist_ok=True)
        shutil.rmtree(runtime, ignore_errors=True)


def _unmount(place: Path) -> None:
    """Take off all that lies on a folder: a fault that was cut off has left its own mount."""
    while place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def some(chance: random.Random, least: int, most: int) -> int:
    """A number of that size, small ones as likely as large ones."""
    return round(least * (most / least) ** chance.random())
