"""The processes of a run: started behind the barrier, followed by their output, ended as a tree.

All processes that a run starts stay below its keeper (`radt.runner.keeper`). If the keeper is gone,
they are found by the run's id in their environment; a process that cleared its environment is
missed.
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
from radt.processes import send_signal, stop_run
from radt.procfs import all_pids, process_stat
from radt.runner import keeper
from radt.runner.barrier import Barrier
from radt.runner.output import OutputPump

#: A process in uninterruptible I/O cannot die; radt waits no longer than this for it.
KILL_PATIENCE_S = 10.0
_POLL_S = 0.01


#: Variables that Python's shared libraries may need; the keeper's environment has only these.
_KEEPER_VARIABLES = ("LD_LIBRARY_PATH",)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a training process ended; `radt.runner.outcome` interprets it.

    ``code`` is negative for a signal, as in `subprocess`. ``leftovers`` counts the processes that
    outlived it and were killed, ``immortal`` those that could not be killed (in uninterruptible
    I/O, or owned by another user). ``ended_ns`` is the monotonic time of its end, None if it was
    not observed. ``keeper_died`` says that the run's keeper was killed, and the run with it.
    ``tail`` has the last lines of its output. ``container`` is the id of its container, "" if it
    ran in none.
    """

    code: int
    leftovers: int = 0
    immortal: int = 0
    pid: int | None = None
    ended_ns: int | None = None
    keeper_died: bool = False
    tail: tuple[str, ...] = ()
    container: str = ""


class TrainingProcess:
    """A command in its own session below a keeper, held at a barrier until released.

    Call ``wait_ready``, release the barrier, then call ``wait_released``. ``on_exit`` is called
    once from a thread of this object.
    Args:
        command: What to execute, looked up on PATH; never given to a shell.
        output_log: File that gets every byte the process writes.
        show: Called with decoded lines for the console; must not block.
        on_exit: Called once the process and all its descendants have ended and the output is read.
        cpus: The CPUs it may run on; None for all that the runner may use.
        kill_command: Ends a run that signals do not reach (``docker kill NAME``). The keeper
            executes it before SIGKILL, and after an unsuccessful exit; so it also runs after the
            runner's death.
        usage_file: Where the keeper writes the kernel's resource usage of the run's processes
            (`radt.usage`) before ``on_exit``; None to write none.

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
        with contextlib.ExitStack() as theirs:  # closed here once the keeper has its copies
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
        """Id of the process, its process group and its session; known once it is ready."""
        assert self._pid is not None, "wait_ready comes first"
        return self._pid

    @property
    def keeper_pids(self) -> tuple[int, ...]:
        """Ids of the run's guard and, once the process is ready, its keeper."""
        return (self._popen.pid, *((self._keeper_pid,) if self._keeper_pid is not None else ()))

    @property
    def tree_root(self) -> int | None:
        """Id of the process above all of the run's; None before it is ready and after its end."""
        return None if self._ended else self._keeper_pid

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the process is at the barrier.

        Raises:
            LaunchError: It was not ready in time, or the CPUs were refused.
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
        """Send a signal to the process and its descendants; harmless once they are gone.

        Which processes get which signal: `radt.runner.keeper.signal_tree`.
        """
        if self._popen.returncode is None:
            for pid in self.keeper_pids:  # the user may have stopped all of their processes
                send_signal(pid, signal.SIGCONT)
        self._tell(bytes([number]))

    def descendants(self) -> list[int]:
        """Return the ids of all live processes of the run; none before it is ready."""
        return descendants_of_each([self])[0]

    def tail(self) -> list[str]:
        """Return the last lines of the output so far, safe to display."""
        return self._pump.tail()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until ``on_exit`` was called; return False if it was not called in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _tell(self, data: bytes) -> None:
        """Write to the keeper. If the keeper is gone, `_follow` ends the run."""
        with self._control_lock:
            if self._control_fd < 0:
                return
            try:
                while data:
                    data = data[os.write(self._control_fd, data) :]
            except BrokenPipeError:
                pass

    def _read_record(self, deadline_s: float) -> _Record | None:
        """Read the next record of the start; None at the end of the pipe or after the deadline."""
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
        """Wait until the keeper reports that no process is left, or is gone."""
        exited = left = None
        with self._status:
            while data := self._status.read(keeper.RECORD_BYTES):
                if data[:1] == keeper.EXITED:
                    exited = _Record.of(data)
                else:
                    left = _Record.of(data)
        self._popen.wait()  # the guard; if the keeper was killed, it has ended the tree
        if left is None:
            stop_run(self.run_id, kill_s=KILL_PATIENCE_S, group=self._pid)
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
    """Return the live processes of each run, parents before their children.

    Costs one scan of the machine's processes.
    """
    children: dict[int | None, list[int]] = {}
    for pid in sorted(all_pids()):
        stat = process_stat(pid)
        if stat is not None and stat.alive:
            children.setdefault(stat.parent, []).append(pid)
    trees = [list(children.get(process.tree_root, ())) for process in processes]
    for tree in trees:
        for pid in tree:  # the list grows during the iteration
            tree += children.get(pid, ())
    return trees


@dataclass(frozen=True, slots=True)
class _Record:
    """A record from a pipe of the keeper."""

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
    """Encode text for the system; the locale may lack characters that rows contain."""
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
        LaunchError: The arguments or variables cannot be passed to any program.
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
