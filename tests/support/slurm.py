"""A real Slurm cluster of several nodes on this machine: munged, slurmctld, and a slurmd a node.

Use ``servers.slurm_cluster()``, which ends and removes it all, however the test ends. Works as root
and as any user (then only that user's jobs run). Nodes have GPUs without a driver, and more CPUs
than the machine. All nodes share this machine's host name, network and files.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from radt import procfs
from tests.support.daemon import Daemon, ServerError, free_port, last_lines
from tests.support.waiting import alive, wait_until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue")
_CONFIGURATION = """\
ClusterName={cluster}
SlurmctldHost={place.host}({place.address})
SlurmctldPort={place.port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
# %n: name of the node; each of the slurmds of this machine has its own.
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/%n/slurmd.log
SlurmdSpoolDir={folder}/%n/spool
# No cgroups, no affinity: works in a container, without root.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it a job that does not say what memory it wants has all of a node.
DefMemPerCPU=500
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,defer_batch
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MaxArraySize=20001
MaxJobCount=30000
# As sites have it, or longer: on a busy machine what is late is not dead.
SlurmdTimeout=300
SlurmctldTimeout=300
KillWait=30
UnkillableStepTimeout=180
BatchStartTimeout=180
CompleteWait=0
MinJobAge=300
InactiveLimit=0
TCPTimeout=2
MessageTimeout=10
# What sacct would say, without a database: a line a job at its end.
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
"""
_PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10
PartitionName=scavenge Nodes=ALL MaxTime=INFINITE DefaultTime=60 PriorityTier=1 GraceTime=3
"""
_NODE = (
    "NodeName={name} NodeHostname={place.host} NodeAddr={place.address} Port={place.port} CPUs=8 "
    "Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 {gres}State=UNKNOWN\n"
)


#: The kernel keeps jobs to their memory (root only); the rest stays as it is without cgroups.
_CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint={folder}/cgroup
ConstrainRAMSpace=yes
"""
#: Where the kernel has cgroups (v1) of memory.
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")

#: Where the controller is, and where commands are run.
HEAD = "head"


@dataclass(frozen=True)
class Place:
    """Where a daemon of Slurm listens."""

    host: str
    address: str
    port: int


class Slurm:
    """One cluster. The partition ``main`` preempts ``scavenge``, whose jobs have 3 s of grace.

    Args:
        folder: Made if it does not exist; a short path, as sockets lie in it.
        nodes: How many: ``node1`` and so on, each with 8 CPUs and 16 GB.
        gpus: Of each node: how many, or how many of each type that the site has a name for.
        settings: Lines of ``slurm.conf`` that are to be otherwise; with ``task/cgroup`` as
            TaskPlugin the kernel keeps jobs to their memory.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        gpus: int | Mapping[str, int] = 2,
        *,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.nodes = tuple(f"node{number + 1}" for number in range(nodes))
        self.cluster = f"t{secrets.token_hex(4)}"
        self._gpus = {"": gpus} if isinstance(gpus, int) else gpus
        self._settings = dict(settings or {})
        self._munged = Daemon("munged", self.folder)
        self._controller = Daemon("slurmctld", self.folder)
        self._slurmds = {name: Daemon("slurmd", self.folder / name) for name in self.nodes}

    # Asking it ------------------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's commands need beside the usual variables."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, script: str = "") -> str:
        """Run one of Slurm's commands and return what it prints; it must succeed."""
        done = self.ask(*command, script=script)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ask(self, *command: str, script: str = "") -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, which may fail."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(
            [*self.entrance(HEAD), *command],
            input=script,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def entrance(self, machine: str) -> list[str]:
        """What a command begins with that is run on a machine: ``head`` or a node."""
        return []

    def ended(self) -> list[dict[str, str]]:
        """What the controller has noted of each job at its end: JobId, JobState, NodeList, …"""
        try:
            text = (self.folder / "jobcomp.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        lines = (line.split() for line in text.splitlines())
        return [dict(word.split("=", 1) for word in line if "=" in word) for line in lines]

    def last_words(self) -> str:
        """The ends of the daemons' logs, for a test that failed."""
        daemons = {"slurmctld": self._controller, **self._slurmds}
        return "\n".join(f"{name}: {last_lines(daemon.log)}" for name, daemon in daemons.items())

    def start_now(self, job: str) -> None:
        """Let a job start that was queued again, which waits two minutes by itself."""
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    # Its life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all of it, and return when all nodes are idle."""
        missing = [name for name in _PROGRAMS if _program(name) is None]
        if missing:
            raise ServerError(f"{missing[0]} is not installed. Run: sh tests/system_packages.sh")
        self._write()
        self.start_munged()
        self.start_controller(clean=True)
        for name in self.nodes:
            self.start_node(name)
        self.wait_idle()

    def wait_idle(self, nodes: Iterable[str] | None = None) -> None:
        """Return when nodes, or all, are up and free."""
        expected = set(self.nodes if nodes is None else nodes)

        def are_idle() -> bool:
            answer = self.ask("sinfo", "--noheader", "-N", "-p", "main", "--format=%N %t")
            pairs = (line.split() for line in answer.stdout.splitlines())
            return expected <= {pair[0] for pair in pairs if len(pair) == 2 and pair[1] == "idle"}

        wait_until(are_idle, f"idle nodes; {last_lines(self._controller.log)}")

    def stop(self) -> None:
        """End all of it, with all processes of all jobs."""
        self._controller.kill()
        for name in self.nodes:
            self.kill_node(name)
        self._munged.kill()
        for group in sorted(self._memory_cgroup.glob("**/"), reverse=True):
            group.rmdir()

    def start_munged(self) -> None:
        """Start what the daemons know each other by."""
        munge = self.folder / "munge"
        self._munged.start([*self.munged_command(), "--foreground"], {}, self.folder)
        wait_until((munge / "socket").exists, "munged's socket")

    def munged_command(self) -> list[str]:
        """Its key and socket are the cluster's own, so one of the system is left alone."""
        munge = self.folder / "munge"
        return [
            *(path_of("munged"), "--force", f"--key-file={self.folder}/munge.key"),
            *(f"--socket={munge}/socket", f"--pid-file={munge}/pid"),
            *(f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        ]

    def stop_munged(self) -> None:
        """Without it no command is believed."""
        self._munged.stop()

    def start_controller(self, *, clean: bool = False) -> None:
        """Start slurmctld, with what it has saved unless it is to begin ``clean``."""
        # -i: with an incomplete state, as after a kill, too.
        options = ["-c"] if clean else ["-i"]
        self._controller.start(
            [*self.entrance(HEAD), path_of("slurmctld"), "-D", *options], self.environ, self.folder
        )
        wait_until(
            lambda: "is UP" in self.ask("scontrol", "ping").stdout,
            f"slurmctld; {last_lines(self._controller.log)}",
        )

    def kill_controller(self) -> None:
        """SIGKILL to slurmctld; it keeps what it has saved until then (every few seconds)."""
        self._controller.kill()

    def stop_controller(self) -> None:
        """End slurmctld, which saves what it knows."""
        self._controller.stop()

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        command = [*self.entrance(name), path_of("slurmd"), "-D", "-N", name]
        self._slurmds[name].start(command, self.environ, self.folder)

    def kill_slurmd(self, name: str) -> None:
        """SIGKILL to a node's slurmd alone: its jobs go on."""
        self._slurmds[name].kill()

    def kill_node(self, name: str) -> None:
        """SIGKILL to all of a node, as if it had lost its power."""
        self.kill_slurmd(name)
        while pids := self.processes(name):  # those may start others until they are dead
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it has ended meanwhile
            for pid in pids:
                wait_until(lambda pid=pid: not alive(pid), f"the end of {pid}")  # type: ignore[misc]

    def declare_down(self, name: str) -> None:
        """Tell the controller that a node is down, which takes it half a minute to find out.

        The node is in use again as soon as its slurmd is started.
        """
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")

    def processes(self, name: str) -> list[int]:
        """Live processes of a node: of Slurm, of its jobs, and what those have left behind."""
        return [pid for pid in procfs.all_pids() if alive(pid) and self._is_of(pid, name)]

    def job_processes(self, name: str) -> list[int]:
        """Live processes of a node's jobs, without Slurm's own."""
        return [pid for pid in self.processes(name) if self._in_job(pid, name)]

    def _is_of(self, pid: int, name: str) -> bool:
        if self._in_job(pid, name):
            return True
        # slurmstepd writes over its environment; it has the node's log open.
        inside = f"{self.folder}/{name}/"
        return any(target.startswith(inside) for target in _open_files(pid))

    def _in_job(self, pid: int, name: str) -> bool:
        variables = procfs.environment(pid)
        mine = {f"SLURMD_NODENAME={name}".encode(), f"SLURM_CLUSTER_NAME={self.cluster}".encode()}
        return mine <= set(variables)

    # Its files ------------------------------------------------------------------------------------

    def _write(self) -> None:
        for path in (self.folder / "munge", self.folder / "state"):
            path.mkdir(parents=True, mode=0o755)
        (self.folder / "state").chmod(0o700)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        text = _CONFIGURATION.format(
            cluster=self.cluster,
            place=self._place(HEAD),
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=self.folder,
        )
        for setting, value in self._settings.items():
            lines = [line for line in text.splitlines() if not line.startswith(f"{setting}=")]
            text = "\n".join([*lines, f"{setting}={value}", ""])
        kinds = [
            f"gpu:{kind}:{count}" if kind else f"gpu:{count}"
            for kind, count in self._gpus.items()
            if count
        ]
        gres = f"Gres={','.join(kinds)} " if kinds else ""
        for name in self.nodes:
            text += _NODE.format(name=name, place=self._place(name), gres=gres)
        (self.folder / "slurm.conf").write_text(text + _PARTITIONS, encoding="utf-8")
        (self.folder / "gres.conf").write_text("".join(self._gpu_lines()), encoding="utf-8")
        if self._settings.get("TaskPlugin") == "task/cgroup":
            self._memory_cgroup.mkdir()
            (self.folder / "cgroup").mkdir()
            (self.folder / "cgroup" / "memory").symlink_to(self._memory_cgroup)
            (self.folder / "cgroup.conf").write_text(_CGROUPS.format(folder=self.folder))

    @property
    def _memory_cgroup(self) -> Path:
        """The cluster's own: clusters may have nodes and jobs of the same names."""
        return MEMORY_CGROUPS / f"radt-{self.cluster}"

    def _place(self, _machine: str) -> Place:
        return Place(socket.gethostname(), "127.0.0.1", free_port())

    def _gpu_lines(self) -> Iterator[str]:
        kinds = [kind for kind, count in self._gpus.items() for _ in range(count)]
        for name in self.nodes:
            devices = self.folder / name / "dev"
            devices.mkdir(parents=True)
            (self.folder / name / "spool").mkdir()
            for number, kind in enumerate(kinds):
                # A device, or CUDA_VISIBLE_DEVICES is not set; the number is taken from the name.
                (devices / f"nvidia{number}").symlink_to("/dev/null")
                words = ["Name=gpu", *([f"Type={kind}"] if kind else [])]
                yield f"NodeName={name} {' '.join(words)} File={devices}/nvidia{number}\n"


def kill_cluster(folder: Path) -> None:
    """SIGKILL to all of a cluster that another process has started."""
    text = (folder / "slurm.conf").read_text(encoding="utf-8")
    cluster = Slurm(folder, text.count("NodeName="))
    cluster.cluster = text.partition("ClusterName=")[2].partition("\n")[0]
    cluster.stop()


def _program(name: str) -> str | None:
    return shutil.which(
        name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    )


def path_of(name: str) -> str:
    path = _program(name)
    assert path is not None, name
    return path


def _open_files(pid: int) -> Iterator[str]:
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            yield str(entry.readlink())
    except OSError:
        return  # gone, or not ours
