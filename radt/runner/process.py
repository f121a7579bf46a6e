"""A run's processes: started behind the barrier, output followed, the tree ended with the run.

All processes that a run starts stay below its keeper (`radt.runner.keeper`). If the keeper is gone,
they are found by the run's id in their environment; one that cleared its environment is missed.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.errors import LaunchError
from radt.home import RUN_ID_VARIABLE
from radt.procfs import all_pids, environment, process_stat
from radt.runner import keeper
from radt.runner.barrier import Barrier
from radt.runner.output import OutputPump

#: One that waits for a disk cannot die; it must not keep anybody waiting.
KILL_PATIENCE_S = 10.0
_POLL_S = 0.01


def descendants_of_roots(roots: Iterable[int]) -> dict[int, list[int]]:
    """Return the live processes below each root, parents before their children.

    One scan of all processes, which is what it costs.
    """
    children: dict[int, list[int]] = {}
    for pid in sorted(all_pids()):
        stat = process_stat(pid)
        if stat is not None and stat.alive:
            children.setdefault(stat.parent, []).append(pid)
    by_root: dict[int, list[int]] = {}
    for root in roots:
        below = by_root[root] = list(children.get(root, ()))
        for pid in below:  # which grows
            below += children.get(pid, ())
    return by_root


def processes_of(run_id: str) -> list[int]:
    """Ids of the user's live processes that carry the run's id, this one left out."""
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    own = os.getpid()
    return [pid for pid in all_pids() if pid != own and mark in environment(pid)]


def group_members(pgid: int) -> list[int]:
    """Ids of the live processes of a process group."""
    stats = (process_stat(pid) for pid in all_pids())
    return [stat.pid for stat in stats if stat is not None and stat.alive and stat.group == pgid]


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone, or be another user's by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def stop_processes_of(run_id: str, pgid: int | None = None) -> int:
    """SIGKILL to what is left of a run whose keeper is gone, until nothing is.

    Args:
        pgid: The process group that was made for the run, if it may still be the run's.

    Returns:
        How many processes there were.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_PATIENCE_S
    while True:
        left = set(processes_of(run_id))
        if pgid is not None:
            left |= set(group_members(pgid))
        if not left or time.monotonic() > deadline:
            return len(ended)
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        ended |= left
        time.sleep(_POLL_S)  # not our children: there is nothing to wait on


#: What Python's shared libraries may need; the keeper's environment is empty but for these.
_KEEPER_VARIABLES = ("LD_LIBRARY_PATH",)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a training process ended; what it means is for `radt.runner.outcome`.

    ``code`` is negative for a signal, as in `subprocess`. ``leftovers`` counts the processes that
    it left behind and that were ended, ``immortal`` those that could not be (they wait for a disk
    or are another user's). ``ended_ns`` is the monotonic time of its end, None if nobody saw it.
    ``keeper_died`` says that somebody ended the run's keeper, and so the run. ``tail`` has the last
    lines of its output.
    """

    code: int
    leftovers: int = 0
    immortal: int = 0
    pid: int | None = None
    ended_ns: int | None = None
    keeper_died: bool = False
    tail: tuple[str, ...] = ()


class TrainingProcess:
    """A command in a session of its own below a keeper, held at a barrier until released.

    The call order is ``wait_ready``, (barrier released), ``wait_released``; ``on_exit`` is called
    once from a thread of this object.

    Args:
        command: What to execute, looked up on PATH; never given to a shell.
        output_log: File that gets every byte the process writes.
        show: Called with decoded lines for the console; must not block.
        on_exit: Called when the process, all that it started and its output are done with.
        cpus: The CPUs it may run on; None for all that the runner may use.
        kill_command: What ends the run where signals do not reach it (``docker kill NAME``). It
            is executed before SIGKILL, and when the process ended other than with success; by the
            keeper, so also after the runner's death.
        usage_file: Where the keeper writes what the kernel counted of the run's processes
            (`radt.usage`), before ``on_exit``; None for nowhere.

    Raises:
        LaunchError: The system cannot start another process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        run_id: str,
        cwd: Path,
        env: Mapping[str, str],
        barrier: Barrier,
        output_log: Path,
        show: Callable[[str], None],
        on_exit: Callable[[Exit], None],
        cpus: frozenset[int] | None = None,
        kill_command: Sequence[str] | None = None,
        usage_file: Path | None = None,
    ) -> None:
        self.run_id = run_id
        self.command = tuple(command)
        self._cpus = cpus
        self._on_exit = on_exit
        self._keeper_pid: int | None = None
        self._pid: int | None = None
        self._ended = False
        self._control_lock = threading.Lock()
        specification = _specification(command, env, cpus, kill_command, usage_file)
        with contextlib.ExitStack() as theirs:  # closed here once the keeper has its own
            control_fd, self._control_fd = os.pipe()
            start_from, start_fd = os.pipe()
            status_from, status_fd = os.pipe()
            self._start = os.fdopen(start_from, "rb", buffering=0)
            self._status = os.fdopen(status_from, "rb")
            passed = (control_fd, start_fd, status_fd)
            for fd in passed:
                theirs.callback(os.close, fd)
            try:
                self._popen = _start_keeper((*passed, barrier.read_fd), run_id, cwd)
            except OSError as error:
                os.close(self._control_fd)
                self._start.close()
                self._status.close()
                raise LaunchError(
                    f"{command[0]} could not be started in {cwd}: {error.strerror}",
                    "Check that the folder exists and that the machine has free memory and "
                    "processes",
                ) from error
        self._tell(len(specification).to_bytes(8, sys.byteorder) + specification)
        assert self._popen.stdout is not None
        self._pump = OutputPump(self._popen.stdout, output_log, show)
        self._pump.start()
        self._thread = threading.Thread(target=self._follow, name=f"run-{run_id[:8]}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Id of the process, also of its process group and session; known when it is ready."""
        assert self._pid is not None, "wait_ready comes first"
        return self._pid

    @property
    def keeper_pids(self) -> tuple[int, ...]:
        """Ids of the run's guard and, once the process is ready, of its keeper."""
        return (self._popen.pid, *((self._keeper_pid,) if self._keeper_pid is not None else ()))

    @property
    def tree_root(self) -> int | None:
        """Id of the process that all of the run's are below; None before it is ready and after."""
        return None if self._ended else self._keeper_pid

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the process stands at the barrier.

        Raises:
            LaunchError: It does not within the time, or may not use the CPUs.
        """
        deadline_s = time.monotonic() + timeout_s
        ready = self._read_record(deadline_s)
        if ready is not None and ready.kind == keeper.FAILED:
            self._start.close()
            raise LaunchError(
                f"{self.command[0]} cannot run on CPUs {_listed(self._cpus or ())}: "
                f"{os.strerror(ready.first)}",
                f"This process may use CPUs {_listed(os.sched_getaffinity(0))}",
            )
        if ready is None:
            self._start.close()
            how = f"did not reach the start barrier within {timeout_s:.0f} s"
            if time.monotonic() < deadline_s:
                how = "ended before the start barrier"
            raise LaunchError(
                f"{self.command[0]} {how}",
                "Check the run's output.log, and the machine's load and memory",
            )
        self._pid, self._keeper_pid = ready.first, ready.second

    def wait_released(self, timeout_s: float) -> int:
        """Return the monotonic time in ns at which the process passed the barrier.

        Raises:
            LaunchError: The command cannot be executed.
        """
        deadline_s = time.monotonic() + timeout_s
        started = self._read_record(deadline_s)
        problem = self._read_record(deadline_s) if started is not None else None
        self._start.close()
        if started is None:
            raise LaunchError(f"{self.command[0]} ended at the start barrier")
        if problem is not None:
            remedy = "Make it executable (chmod +x) and give it a #! line"
            if problem.first == errno.ENOENT:
                remedy = "Check the name and the interpreter in its #! line"
            elif problem.first == errno.E2BIG:
                remedy = "Shorten the parameters or pass them in a file"
            raise LaunchError(
                f"{Path(self.command[0]).name} cannot be executed: {os.strerror(problem.first)}",
                remedy,
            )
        return started.first

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started; harmless when they are gone.

        Which processes get which signal: `radt.runner.keeper.signal_tree`.
        """
        if self._popen.returncode is None:
            for pid in self.keeper_pids:  # somebody may have stopped them, with all the user's
                send_signal(pid, signal.SIGCONT)
        self._tell(bytes([number]))

    def descendants(self) -> list[int]:
        """Ids of all live processes of the run, the first included; none before it is ready."""
        return descendants_of_each([self])[0]

    def tail(self) -> list[str]:
        """The last lines of the output so far, as they may be shown."""
        return self._pump.tail()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until ``on_exit`` was called; False if it was not within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _tell(self, data: bytes) -> None:
        """Write to the keeper, which may be gone; then `_follow` ends the run."""
        with self._control_lock:
            if self._control_fd < 0:
                return
            try:
                while data:
                    data = data[os.write(self._control_fd, data) :]
            except BrokenPipeError:
                pass

    def _read_record(self, deadline_s: float) -> _Record | None:
        """What the process says of its start; None at the end of it, or when the time is over."""
        data = b""
        poller = select.poll()
        poller.register(self._start, select.POLLIN)
        while len(data) < keeper.RECORD_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                return None
            piece = self._start.read(keeper.RECORD_BYTES - len(data))
            if not piece:
                return None
            data += piece
        return _Record.of(data)

    def _follow(self) -> None:
        """Wait until the keeper reports that nothing is left, or is gone."""
        exited = left = None
        with self._status:
            while data := self._status.read(keeper.RECORD_BYTES):
                if data[:1] == keeper.EXITED:
                    exited = _Record.of(data)
                else:
                    left = _Record.of(data)
        self._popen.wait()  # the guard; if the keeper was killed, it has ended the tree
        if left is None:
            stop_processes_of(self.run_id, self._pid)
        self._ended = True
        with self._control_lock:
            os.close(self._control_fd)
            self._control_fd = -1
        self._pump.finish()
        self._on_exit(
            Exit(
                # Without its keeper, the kernel ends the process (PR_SET_PDEATHSIG).
                code=os.waitstatus_to_exitcode(exited.first) if exited else -signal.SIGKILL,
                leftovers=left.first if left else 0,
                immortal=left.second if left else 0,
                pid=self._pid,
                ended_ns=exited.second if exited else None,
                keeper_died=exited is None,
                tail=tuple(self._pump.tail()),
            )
        )


def descendants_of_each(processes: Sequence[TrainingProcess]) -> list[list[int]]:
    """`TrainingProcess.descendants` of each, by one look at all processes of the machine."""
    roots = [process.tree_root for process in processes]
    by_root = descendants_of_roots(root for root in roots if root is not None)
    return [by_root[root] if root is not None else [] for root in roots]


@dataclass(frozen=True, slots=True)
class _Record:
    """What came through a pipe of the keeper's."""

    kind: bytes
    first: int
    second: int

    @classmethod
    def of(cls, data: bytes) -> _Record:
        return cls(
            data[:1],
            int.from_bytes(data[1:9], sys.byteorder, signed=True),
            int.from_bytes(data[9:], sys.byteorder, signed=True),
        )


def _encoded(text: str) -> bytes:
    """Return the text as the system takes it; a locale may lack characters that rows have."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def _specification(
    command: Sequence[str],
    env: Mapping[str, str],
    cpus: frozenset[int] | None,
    kill_command: Sequence[str] | None,
    usage_file: Path | None,
) -> bytes:
    """Encode the process for the keeper to start.

    Raises:
        LaunchError: No program can get such arguments or variables.
    """
    words = [_encoded(word) for word in command]
    variables = {_encoded(name): _encoded(value) for name, value in env.items()}
    if any(b"\0" in text for text in (*words, *variables, *variables.values())):
        raise LaunchError(
            f"{command[0]} cannot be started: a parameter or variable contains a NUL character",
            "Remove it",
        )
    return marshal.dumps(
        (
            words,
            variables,
            None if cpus is None else sorted(cpus),
            [os.fsencode(word) for word in kill_command or ()],
            b"" if usage_file is None else os.fsencode(usage_file),
        )
    )


def _start_keeper(fds: Sequence[int], run_id: str, cwd: Path) -> subprocess.Popen[bytes]:
    numbers = [str(fd) for fd in fds]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__, *numbers, run_id],
        cwd=cwd,
        env={name: os.environ[name] for name in _KEEPER_VARIABLES if name in os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        start_new_session=True,
    )


def _listed(cpus: Iterable[int]) -> str:
    return ", ".join(str(cpu) for cpu in sorted(cpus))
