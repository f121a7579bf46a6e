"""A Slurm cluster whose nodes share nothing but a folder, each in namespaces of its own.

Root only. A node has its own network, host name, ``/tmp``, HOME, boot id, process numbers and
monotonic clock (1,000 s apart); so has ``head``, where the controller and the commands run. They
reach each other over a bridge that nothing outside is on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from radt import procfs
from tests.support.daemon import Daemon, ServerError
from tests.support.slurm import HEAD, Place, Slurm
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_NETWORK = "10.77.0."
#: Seconds between the monotonic clocks of two nodes.
CLOCK_STEP_S = 1000
# The first process of a machine, in its namespaces. Of /tmp and HOME, which are its own, it keeps
# the cluster's folder, and read-only what programs are run from.
_INIT = """\
set -e
dir=$1 name=$2 home=$3; shift 3
hostname "$name"
mount --bind "$dir/hosts" /etc/hosts
mount --bind "$dir/$name/boot_id" /proc/sys/kernel/random/boot_id
stage=/run/radt-test; mkdir -p $stage; mount -t tmpfs tmpfs $stage
i=0
for kept in "$dir" "$@"; do i=$((i + 1)); mkdir $stage/$i; mount --bind "$kept" $stage/$i; done
mount --bind "$stage/1/$name/tmp" /tmp
mkdir -p "$home"  # a test run's own HOME is in /tmp
mount --bind "$stage/1/$name/home" "$home"
i=0
for kept in "$dir" "$@"; do
    i=$((i + 1)); mkdir -p "$kept"; mount --bind $stage/$i "$kept"
    [ $i = 1 ] || mount -o remount,bind,ro "$kept"
    umount $stage/$i
done
umount $stage
mount --bind "$dir/$name/munge" "$dir/munge"
$MUNGED
while :; do sleep 1000 & wait $!; done  # bash takes leave of whoever ends here
"""


class IsolatedSlurm(Slurm):
    """One cluster; ``shared`` is the folder that its machines use together.

    Args:
        folder: As for `Slurm`.
        nodes: How many.
        gpus: Of each node.
        settings: Lines of ``slurm.conf`` that are to be otherwise.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        gpus: int = 2,
        *,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, nodes, gpus, settings=settings)
        self.shared = self.folder / "shared"
        self.machines = (HEAD, *self.nodes)
        self._switch = Daemon("switch", self.folder)
        self._inits = {name: Daemon("machine", self.folder / name) for name in self.machines}

    def entrance(self, machine: str) -> list[str]:
        pid = str(self._init_pid(machine))
        spaces = ("--net", "--uts", "--mount", "--ipc", "--time", "--pid")
        return ["nsenter", f"--target={pid}", *spaces, "--wdns=/", "--"]

    def start_munged(self) -> None:
        """Start the machines, each with a munged of its own."""
        (self.shared).mkdir()
        names = [f"{self._place(name).address} {name}\n" for name in self.machines]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        self._switch.start(["unshare", "--net", "sleep", "infinity"], {}, self.folder)
        wait_until(lambda: self._own_space(self._switch.pid, "net"), "a network of the switch")
        self._at_switch("link", "add", "bridge", "type", "bridge")
        self._at_switch("link", "set", "bridge", "up")
        for name in self.machines:
            self._bring_up(name)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, on a machine that is brought up if it has died."""
        if self._inits[name].pid is None:
            self._bring_up(name)
        super().start_node(name)

    def kill_node(self, name: str) -> None:
        """SIGKILL to all of a node, as if it had lost its power."""
        self._inits[name].kill()
        self.kill_slurmd(name)

    def cut_off(self, name: str) -> None:
        """Pull a machine's network cable."""
        self._at_switch("link", "set", f"to-{name}", "down")

    def connect(self, name: str) -> None:
        """Put the cable back."""
        self._at_switch("link", "set", f"to-{name}", "up")

    def stop(self) -> None:
        self._controller.kill()
        for name in self.nodes:
            self.kill_node(name)
        self._inits[HEAD].kill()
        self._switch.kill()

    def stop_munged(self) -> None:
        raise NotImplementedError("each machine has its own")

    # ----------------------------------------------------------------------------------------------

    def _place(self, machine: str) -> Place:
        number = self.machines.index(machine)
        return Place(machine, f"{_NETWORK}{10 + number}", 6818 if number else 6817)

    def _bring_up(self, name: str) -> None:
        folder = self.folder / name
        for part in ("tmp", "home", "munge"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "munge").chmod(0o755)
        (folder / "munge" / "socket").unlink(missing_ok=True)  # of its last life
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        offset = str(CLOCK_STEP_S * self.machines.index(name))
        init = _INIT.replace("$MUNGED", " ".join(self.munged_command()))
        self._inits[name].start(
            [
                *("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--time"),
                *("--monotonic", offset, "--boottime", offset, "--fork", "--kill-child"),
                *("--mount-proc", "bash", "-c", init, name),
                *(str(self.folder), name, str(Path.home()), *map(str, _kept())),
            ],
            {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},  # the test run's is in /tmp
            Path("/"),
        )
        wait_until(
            lambda: (folder / "munge" / "socket").exists() or self._inits[name].pid is None,
            f"munged of {name}",
        )
        if self._inits[name].pid is None:
            raise ServerError(f"{name} does not start: {self._inits[name].log.read_text()}")
        pid, cable = str(self._init_pid(name)), f"to-{name}"
        self._at_switch(
            *("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        )
        self._at_switch("link", "set", cable, "master", "bridge", "up")
        inside = ["nsenter", f"--target={pid}", "--net", "ip"]
        for words in (
            ["addr", "add", f"{self._place(name).address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            subprocess.run([*inside, *words], check=True)

    def _at_switch(self, *words: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={self._switch.pid}", "--net", "ip", *words], check=True
        )

    def _init_pid(self, name: str) -> int:
        """The first process of a machine: the only child of its unshare."""
        parent = self._inits[name].pid
        for pid in procfs.all_pids():
            stat = procfs.process_stat(pid)
            if parent is not None and stat is not None and stat.parent == parent:
                return pid
        raise ServerError(f"{name} is not up: {self._inits[name].log.read_text()}")

    def _own_space(self, pid: int | None, kind: str) -> bool:
        try:
            return (
                Path(f"/proc/{pid}/ns/{kind}").readlink()
                != Path(f"/proc/self/ns/{kind}").readlink()
            )
        except OSError:
            return False

    def _is_of(self, pid: int, name: str) -> bool:
        if self._inits[name].pid is None:
            return False
        try:
            space = Path(f"/proc/{pid}/ns/pid").readlink()
            return space == Path(f"/proc/{self._init_pid(name)}/ns/pid").readlink()
        except OSError:
            return False


def _kept() -> Iterator[Path]:
    """What programs are run from, as far as it lies in folders that machines have of their own."""
    own = (Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path.home().resolve())
    found: list[Path] = []
    programs = filter(Path.is_dir, map(Path, os.environ["PATH"].split(os.pathsep)))
    for path in sorted({_ROOT, Path(sys.prefix), Path(sys.base_prefix), *programs}):
        inside = any(path.is_relative_to(folder) for folder in own)
        if inside and not any(path.is_relative_to(other) for other in found):
            found.append(path)
            yield path
