"""One training process: started behind the barrier, its output followed, its group cleaned up."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.errors import LaunchError
from radt.model import RunStatus
from radt.runner import gate, reaper
from radt.runner.output import OutputPump

#: How long children that a run left behind get to end by themselves.
LEFTOVER_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a training process ended; ``code`` is negative for a signal, as in `subprocess`."""

    code: int
    leftovers: int

    @property
    def status(self) -> RunStatus:
        """FAILED also for a signal that radt did not send (crash, out of memory): KILLED rows are
        run again by the next start, and such a row would be killed again."""
        return RunStatus.FINISHED if self.code == 0 else RunStatus.FAILED

    @property
    def reason(self) -> str:
        """A few words for people, empty if all went well."""
        if self.code == 0:
            return ""
        if self.code < 0:
            try:
                name = signal.Signals(-self.code).name
            except ValueError:
                name = f"signal {-self.code}"
            return f"killed by {name}"
        return f"exit code {self.code}"


class Barrier:
    """Releases all gates of a workload at one instant: they wait for the end of one pipe."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def release(self) -> None:
        """Let all go. Harmless when done already."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        """Release, and give back the pipe."""
        self.release()
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


class TrainingProcess:
    """A command in a process group of its own, held at a barrier until released.

    The call order is ``wait_ready``, (barrier released), ``wait_released``, then ``on_exit`` is
    called once from a thread of this object.

    Args:
        command: What to execute, looked up on PATH; never given to a shell.
        output_log: File that gets every byte the process writes.
        show: Called with decoded lines for the console; must not block.
        on_exit: Called when the process, its group and its output are done with.

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
    ) -> None:
        self.run_id = run_id
        self.command = tuple(command)
        self._on_exit = on_exit
        self._ready_fd, gate_fd = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    gate.__file__,
                    str(gate_fd),
                    str(barrier.read_fd),
                    str(os.getpid()),
                    *command,
                ],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(gate_fd, barrier.read_fd),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._ready_fd)
            raise LaunchError(
                f"{command[0]} could not be started in {cwd}: {error.strerror}",
                "Check that the folder exists and that the machine has memory and processes left",
            ) from error
        finally:
            os.close(gate_fd)
        assert self._popen.stdout is not None
        self._pump = OutputPump(self._popen.stdout, output_log, show)
        self._thread = threading.Thread(target=self._follow, name=f"run-{run_id[:8]}", daemon=True)

    @property
    def pid(self) -> int:
        """Id of the process, also of its process group and session."""
        return self._popen.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the gate stands.

        Raises:
            LaunchError: It does not within the time.
        """
        self._pump.start()
        self._thread.start()
        if self._read(1, timeout_s) != gate.READY:
            raise LaunchError(
                f"{self.command[0]} did not reach the start barrier within {timeout_s:.0f} s",
                "Look at the run's output.log, and at the load and memory of the machine",
            )

    def wait_released(self, timeout_s: float) -> int:
        """Return the monotonic time in ns at which the process passed the barrier.

        Raises:
            LaunchError: The command cannot be executed.
        """
        stamp = self._read(8, timeout_s)
        if len(stamp) != 8:
            raise LaunchError(f"{self.command[0]} ended at the start barrier")
        problem = self._read(4, timeout_s)
        os.close(self._ready_fd)
        if problem:
            number = int.from_bytes(problem, sys.byteorder)
            remedy = "Make it executable (chmod +x) and give it a #! line"
            if number == errno.ENOENT:
                remedy = "Check the name, and the interpreter that its #! line names"
            raise LaunchError(
                f"{self.command[0]} cannot be executed: {os.strerror(number)}", remedy
            )
        return int.from_bytes(stamp, sys.byteorder)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; harmless when it is gone."""
        reaper.signal_group(self.pid, number)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until ``on_exit`` was called; False if it was not within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _read(self, count: int, timeout_s: float) -> bytes:
        """Up to ``count`` bytes from the gate; fewer when it has closed or time is over."""
        deadline = time.monotonic() + timeout_s
        data = b""
        while len(data) < count:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._ready_fd], [], [], left_s)[0]:
                break
            piece = os.read(self._ready_fd, count - len(data))
            if not piece:
                break
            data += piece
        return data

    def _follow(self) -> None:
        code = self._popen.wait()
        leftovers = self._stop_leftovers()
        self._pump.finish()
        self._on_exit(Exit(code, leftovers))

    def _stop_leftovers(self) -> int:
        """End what the process left behind; it would bias every later measurement."""
        ids = reaper.processes_of({self.run_id.encode()})
        if not ids and not reaper.group_alive(self.pid):
            return 0
        self.signal(signal.SIGTERM)
        for pid in ids:
            _signal_process(pid, signal.SIGTERM)
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while time.monotonic() < deadline and (
            reaper.group_alive(self.pid) or any(_alive(pid) for pid in ids)
        ):
            time.sleep(0.02)  # not our children: there is nothing to wait on
        self.signal(signal.SIGKILL)
        for pid in reaper.processes_of({self.run_id.encode()}):
            _signal_process(pid, signal.SIGKILL)
        return max(1, len(ids))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
