"""What can go wrong in a round: kills, a stopped collector, resources that are gone, damage."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.world import INODES, Process, World, some

#: A fault that lasts: it begins when entered; yields what it did, in words.
Strike = Callable[[World, random.Random], AbstractContextManager[str]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: In tables, and to choose it.
        strike: Does it, and undoes it.
        lasts: It goes on for a while; otherwise it is done at once.
        ends_runs: Runs may end otherwise than their scripts say.
        of_rows: There must be a runner.
        takes_room: The data folder has no room meanwhile; it needs a disk of its own.
        damages: Journals are damaged; what is lost must be counted.
        last: Nothing comes after it.
    """

    name: str
    strike: Strike
    lasts: bool = False
    ends_runs: bool = False
    of_rows: bool = False
    takes_room: bool = False
    damages: bool = False
    last: bool = False


def _kill(who: Callable[[World], list[Process]]) -> Strike:
    @contextmanager
    def strike(world: World, chance: random.Random) -> Iterator[str]:
        found = who(world)
        chosen = chance.sample(found, chance.randint(1, len(found))) if found else []
        for process in chosen:
            process.signal(signal.SIGKILL)
        yield f"{len(chosen)} killed"

    return strike


@contextmanager
def _kill_everything(world: World, chance: random.Random) -> Iterator[str]:
    """As `docker kill` does: none of them sees another die."""
    found = [*world.processes(), *world.keepers()]
    for process in found:
        process.signal(signal.SIGSTOP)
    for process in found:
        process.signal(signal.SIGKILL)
    yield f"{len(found)} killed"


@contextmanager
def _kill_owners(world: World, chance: random.Random) -> Iterator[str]:
    """Script, collector and guardian at once, as when memory runs out."""
    found = [*world.guardians(), *world.workers(), *world.training()]
    for process in found:
        process.signal(signal.SIGKILL)
    yield f"{len(found)} killed"


@contextmanager
def _stop_worker(world: World, chance: random.Random) -> Iterator[str]:
    found = world.workers()
    for process in found:
        process.signal(signal.SIGSTOP)
    try:
        yield f"{len(found)} stopped"
    finally:
        for process in found:
            process.signal(signal.SIGCONT)


@contextmanager
def _clear_runtime(world: World, chance: random.Random) -> Iterator[str]:
    for entry in world.runtime.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    yield "cleared"


@contextmanager
def _no_descriptors(world: World, chance: random.Random) -> Iterator[str]:
    limited = []
    for process in world.workers():
        try:
            used = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            least = used + chance.randrange(3)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (least, before[1]))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        limited.append((process.pid, before))
    try:
        yield f"{len(limited)} limited"
    finally:
        for pid, before in limited:
            try:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            except ProcessLookupError:
                continue  # it has ended


@contextmanager
def _full_disk(world: World, chance: random.Random) -> Iterator[str]:
    assert world.disk is not None
    try:
        # Open, it can be emptied even while another fault has the disk read-only.
        filler = world.disk.filler.open("ab")
    except OSError as error:  # another fault has left no inode for it, or has the disk read-only
        assert error.errno in (errno.ENOSPC, errno.EROFS), error
        yield "full"
        return
    with filler:
        world.disk.fill()
        try:
            yield "full"
        finally:
            filler.truncate(0)


@contextmanager
def _read_only_disk(world: World, chance: random.Random) -> Iterator[str]:
    assert world.disk is not None
    with world.disk.read_only():
        yield "read-only"


@contextmanager
def _no_inodes(world: World, chance: random.Random) -> Iterator[str]:
    assert world.disk is not None
    room = os.statvfs(world.disk.path)
    _remount(world.disk.path, room.f_files - room.f_ffree)
    try:
        yield "no inodes"
    finally:
        _remount(world.disk.path, INODES)


def _remount(disk: Path, inodes: int) -> None:
    # Fewer than are used meanwhile are refused: then the limit is where it was.
    command = ["mount", "-o", f"remount,nr_inodes={inodes}", str(disk)]
    subprocess.run(command, check=inodes == INODES, capture_output=True)


@contextmanager
def _damage(world: World, chance: random.Random) -> Iterator[str]:
    """Everything dies, and a stretch of some journals with it."""
    with _kill_everything(world, chance):
        pass
    files = sorted(world.home.path.glob("runs/*/journal/*/*"))
    files = [file for file in files if file.suffix in (".bin", ".jsonl") and file.stat().st_size]
    chosen = chance.sample(files, min(len(files), chance.randint(1, 3)))
    done = [f"{_damaged(file, chance)} {file.name}" for file in chosen]
    yield ", ".join(done) or "nothing to damage"


def _damaged(file: Path, chance: random.Random) -> str:
    size = file.stat().st_size
    begin = chance.randrange(size)
    length = min(some(chance, 1, 4096), size - begin)
    with file.open("r+b") as opened:
        opened.seek(begin)
        match chance.choice(["flipped", "zeroed", "cut"]):
            case "flipped":
                byte = opened.read(1)[0] ^ 1 << chance.randrange(8)
                opened.seek(begin)
                opened.write(bytes([byte]))
                return "flipped"
            case "zeroed":
                opened.write(bytes(length))
                return "zeroed"
            case _:
                opened.truncate(begin)
                return "cut"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill script", _kill(World.training)),
        Fault("kill collector", _kill(World.workers)),
        Fault("kill guardian", _kill(World.guardians)),
        Fault("kill deliverers", _kill(World.deliverers)),
        Fault("kill keeper", _kill(World.keepers), ends_runs=True, of_rows=True),
        Fault("kill runner", _kill(World.runners), ends_runs=True, of_rows=True),
        Fault("kill owners", _kill_owners),
        Fault("kill everything", _kill_everything, ends_runs=True),
        Fault("stop collector", _stop_worker, lasts=True),
        Fault("clear runtime folder", _clear_runtime),
        Fault("no descriptors", _no_descriptors, lasts=True),
        Fault("full disk", _full_disk, lasts=True, takes_room=True),
        Fault("read-only disk", _read_only_disk, lasts=True, takes_room=True),
        Fault("no inodes", _no_inodes, lasts=True, takes_room=True),
        Fault("damage", _damage, ends_runs=True, damages=True, last=True),
    )
}
