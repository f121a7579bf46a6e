"""The keeper: holds one run's processes together, from the barrier until the last has ended.

Run as ``python -I -S keeper.py CONTROL START STATUS BARRIER RUN_ID``, once per run; the first four
arguments are the file descriptors of pipes. It imports next to nothing, to start within
milliseconds, and nothing of radt, which ``-I -S`` makes unavailable. Its environment is nearly
empty, so that a search for processes by the run's id does not find the keeper.

It consists of two processes. Both are child subreapers (prctl(2)): any process orphaned below them
becomes their child and can be found, even a daemon that forked twice, created its own session and
cleared its environment.

* the *keeper* starts the command, passes signals on and ends all remaining processes at the end;
* the *guard* is its parent and sleeps. If the keeper is killed, the guard ends the tree.

The pipes:

* CONTROL, read: the length of the specification (8 bytes), then the specification, encoded by
  `marshal`; after that, each byte is the number of a signal for the run's tree. EOF means that the
  runner is dead.
* START, written by the command's process: records READY, STARTED, and FAILED if it cannot become
  the command; closed by exec otherwise.
* STATUS, written: records EXITED, once the command has ended, and LEFT, once nothing is left.
* BARRIER, read: all rows of a workload hold the same one and start at its EOF. A byte in it marks a
  deliberate release: the pipe of a killed runner ends, too.

A record is a letter and two signed 8-byte numbers.
"""

import ctypes
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal as signal  # without enums: their import takes half as long as Python's start

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

RECORD_BYTES = 17
#: The kernel's resource usage of processes; names as in `radt.usage`.
CPU_TIME, RSS_PEAK = "cpu_time_s", "rss_peak_bytes"
IO_READ, IO_WRITTEN = "io_read_bytes", "io_written_bytes"
#: Those that wait4's rusage counts.
RUSAGE_FIELDS = {
    "page_faults_minor": "ru_minflt",
    "page_faults_major": "ru_majflt",
    "context_switches_voluntary": "ru_nvcsw",
    "context_switches_involuntary": "ru_nivcsw",
}

READY = b"r"  # id of the process, id of the keeper
STARTED = b"s"  # monotonic time at which it passed the barrier, in ns
FAILED = b"f"  # errno, and 1 if the CPUs were refused
EXITED = b"e"  # wait status, monotonic time in ns
LEFT = b"l"  # number of processes left behind, number of those that could not be killed

#: Exit code of a command that could not be executed, as shells use it.
EXIT_NOT_EXECUTABLE = 127
#: Seconds after the command's end in which its children may end without counting as left behind.
SETTLE_S = 0.05
LEFTOVER_GRACE_S = 2.0
RUNNER_DIED_GRACE_S = 3.0
#: A process that survives SIGKILL is in uninterruptible I/O or belongs to another user.
KILL_PATIENCE_S = 10.0
#: `docker kill` and the like must not delay the end for longer.
KILL_COMMAND_LIMIT_S = 10.0

#: Signals that a terminal sends to its foreground process group only.
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
ENDING_SIGNALS = (*TERMINAL_SIGNALS, signal.SIGTERM)


class Specification:
    """The runner's specification of the process to start."""

    def __init__(self, data: bytes) -> None:
        self.command: list[bytes]
        self.environment: dict[bytes, bytes]
        self.cpus: list[int] | None  # None for all
        self.kill_command: list[bytes]  # empty for none
        self.usage_file: bytes  # where to write the tree's resource usage; empty for nowhere
        # Trusted: from the runner, which is the same Python, through a private pipe.
        given = marshal.loads(data)  # noqa: S302
        self.command, self.environment, self.cpus, self.kill_command, self.usage_file = given


def record(kind: bytes, first: int, second: int = 0) -> bytes:
    """Encode a record, to be written to a pipe at once."""
    return (
        kind
        + first.to_bytes(8, sys.byteorder, signed=True)
        + second.to_bytes(8, sys.byteorder, signed=True)
    )


def read_exactly(fd: int, count: int) -> bytes:
    """Read exactly `count` bytes; exit if the pipe ends before."""
    data = b""
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            sys.exit(1)  # the runner died while writing
        data += piece
    return data


def prctl(option: int, value: int) -> None:
    """Call prctl(2), which Python lacks."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def silence() -> None:
    """Close the run's output, whose end must come when the run's processes have ended."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


# The command's process ------------------------------------------------------------------------


def become_command(spec: Specification, keeper: int, start: int, barrier: int) -> "NoReturn":
    """Get ready, wait at the barrier, and execute the command. Runs in the child, never returns."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:  # it died before PR_SET_PDEATHSIG took effect
        os._exit(1)
    if spec.cpus is not None:
        try:
            os.sched_setaffinity(0, spec.cpus)
        except OSError as error:
            os.write(start, record(FAILED, error.errno or 0, 1))
            os._exit(EXIT_NOT_EXECUTABLE)
    for number in range(1, signal.NSIG):
        # Reset ignored signals: Python ignores SIGPIPE, shells SIGINT for background jobs.
        if signal.getsignal(number) not in (None, signal.SIG_DFL):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    places = executables(spec)
    at_end, with_byte = select.poll(), select.poll()
    at_end.register(barrier, 0)  # POLLHUP is always reported
    with_byte.register(barrier, select.POLLIN)
    os.write(start, record(READY, os.getpid(), keeper))
    at_end.poll()
    now_ns = time.monotonic_ns()
    if not with_byte.poll(0)[0][1] & select.POLLIN:  # the runner is dead
        os._exit(1)
    os.write(start, record(STARTED, now_ns))
    # If there are more rows than CPUs, let the others pass the barrier before this one works.
    os.sched_yield()
    number = 0
    for place in places:
        try:
            os.execve(place, spec.command, spec.environment)
        except OSError as error:
            # As execvp(3): prefer the error of a file that exists over that of a missing one.
            if number in (0, 2, 20):
                number = error.errno or 0
            if error.errno not in (2, 13, 20):  # ENOENT, EACCES, ENOTDIR
                break
    os.write(start, record(FAILED, number))
    os._exit(EXIT_NOT_EXECUTABLE)


def executables(spec: Specification) -> list[bytes]:
    """Return the command's possible paths: itself if it has a slash, else one per PATH entry."""
    name = spec.command[0]
    if b"/" in name:
        return [name]
    path = spec.environment.get(b"PATH", os.fsencode(os.defpath))
    return [os.path.join(folder or b".", name) for folder in path.split(b":")]


# The tree -------------------------------------------------------------------------------------


def descendants() -> list[tuple[int, int, int, bytes]]:
    """Return pid, parent, group and state of all live processes below this one."""
    children: dict[int, list[tuple[int, int, int, bytes]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open("/proc/" + name + "/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            text = os.read(fd, 4096)
        except OSError:  # it ended between the two calls
            continue
        finally:
            os.close(fd)
        # The name, in parentheses, may contain anything, including parentheses and spaces.
        state, parent, group = text[text.rindex(b")") + 2 :].split(None, 3)[:3]
        children.setdefault(int(parent), []).append((int(name), int(parent), int(group), state))
    pids = []
    parents = [os.getpid()]
    while parents:
        for process in children.get(parents.pop(), ()):
            parents.append(process[0])
            if process[3] not in b"ZXx":
                pids.append(process)
    return pids


def send(call: "Callable[[int, int], None]", target: int, number: int) -> None:
    """Call `os.kill` or `os.killpg` on a target that may be gone or owned by another user."""
    try:
        call(target, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_tree(command: int, number: int) -> None:
    """Send a signal to the tree.

    A terminal's signals go to the command's group, as Ctrl-C in a shell does. Processes that left
    the group get the signal from their parent: launchers such as torchrun create sessions for their
    workers and forward SIGINT, and a second one would interrupt the workers' clean-up. Processes
    that left the group and have no parent any more get it here. SIGTERM and others go to all.
    """
    keeper, targets = os.getpid(), descendants()
    if number in TERMINAL_SIGNALS:
        targets = [p for p in targets if command in (p[0], p[2]) or p[1] == keeper]
    if any(group == command for _, _, group, _ in targets):
        send(os.killpg, command, number)  # atomic, so it includes processes just being forked
    for pid, _, group, _ in targets:
        if group != command:
            send(os.kill, pid, number)
    if number in ENDING_SIGNALS:
        for pid, _, _, state in targets:
            if state == b"T":  # a stopped process handles no signal until it continues
                send(os.kill, pid, signal.SIGCONT)


def kill_tree() -> int:
    """Send SIGKILL to all; return their number.

    By groups: the kernel kills a group atomically, including processes just being forked, so no
    group can fork faster than it is killed. Groups, like sessions, never span two trees.
    """
    own_group = os.getpgrp()
    pids = descendants()
    for group in {process[2] for process in pids} - {own_group}:
        send(os.killpg, group, signal.SIGKILL)
    for pid, _, group, _ in pids:
        if group == own_group:  # the command, before it has created its session
            send(os.kill, pid, signal.SIGKILL)
    return len(pids)


#: Resource usage of all reaped children, each including the children that it has waited for.
#: The bytes are NaN if those of any child could not be read.
usage: dict[str, float] = {CPU_TIME: 0.0, RSS_PEAK: 0, IO_READ: 0, IO_WRITTEN: 0}
usage |= dict.fromkeys(RUSAGE_FIELDS, 0)


def reap() -> tuple[dict[int, int], bool]:
    """Reap all ended children; return their wait statuses by id, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended, False
        if child is None:
            return ended, True
        count_io(child.si_pid)  # /proc has it only until the zombie is reaped
        pid, status, counted = os.wait4(child.si_pid, 0)
        ended[pid] = status
        usage[CPU_TIME] += counted.ru_utime + counted.ru_stime
        usage[RSS_PEAK] = max(usage[RSS_PEAK], counted.ru_maxrss * 1024)
        for name, field in RUSAGE_FIELDS.items():
            usage[name] += getattr(counted, field)


def count_io(zombie: int) -> None:
    """Add the bytes that a child, with the children it waited for, has read and written."""
    try:
        with open(f"/proc/{zombie}/io", "rb") as file:
            lines = dict(line.split(b": ") for line in file.read().splitlines())
        usage[IO_READ] += int(lines[b"rchar"])
        usage[IO_WRITTEN] += int(lines[b"wchar"])
    except (OSError, KeyError):  # another user's process, or a kernel without I/O accounting
        usage[IO_READ] = usage[IO_WRITTEN] = float("nan")


def write_usage(path: bytes) -> None:
    """Write the usage as JSON, atomically, for the collector."""
    known = {name: value for name, value in usage.items() if value == value}
    text = ", ".join(f'"{name}": {value!r}' for name, value in known.items())
    try:
        with open(path + b".part", "wb") as file:
            file.write(b"{" + text.encode() + b"}")
        os.replace(path + b".part", path)
    except OSError:
        pass  # a full disk: the run ends without totals


def kill_all() -> int:
    """Send SIGKILL until nothing is left; return the number of processes that survive it."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    pause_s = 0.0005
    while True:
        count = kill_tree()
        if not reap()[1]:
            return 0
        if time.monotonic() > deadline:
            return max(1, count)
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)


def run_kill_command(spec: Specification) -> None:
    """Run the command that ends a run which signals do not reach, such as a container."""
    if not spec.kill_command:
        return
    environment = {k: v for k, v in spec.environment.items() if k != b"RADT_RUN_ID"}
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            os.execvpe(spec.kill_command[0], spec.kill_command, environment)
        finally:
            os._exit(EXIT_NOT_EXECUTABLE)
    deadline = time.monotonic() + KILL_COMMAND_LIMIT_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.005)


# The keeper -----------------------------------------------------------------------------------


class Keeper:
    """Follows the command and the runner, then ends all remaining processes."""

    def __init__(self, spec: Specification, control: int, status: int, command: int) -> None:
        self.spec, self.control, self.status, self.command = spec, control, status, command
        self.runner_lives = True
        self.exited = False
        self.kill_command_due = bool(spec.kill_command)
        self.hurried = False
        self.wake, wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        self.poller = select.poll()
        self.poller.register(control, select.POLLIN)
        self.poller.register(self.wake, select.POLLIN)

    def keep(self) -> None:
        """Run until no process is left."""
        self.look(0.0)  # the command may have ended before SIGCHLD was set up to wake the poll
        while self.runner_lives and not self.exited:
            self.look(None)
        if self.exited:
            left, stuck = self.end(SETTLE_S, LEFTOVER_GRACE_S)
        else:
            left, stuck = self.end(0.0, RUNNER_DIED_GRACE_S)
        if self.spec.usage_file:
            write_usage(self.spec.usage_file)
        self.report(record(LEFT, left, stuck))

    def look(self, timeout_s: float | None) -> bool:
        """Wait for and handle events; return True if any process is left."""
        for fd, _ in self.poller.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == self.wake:
                os.read(self.wake, 4096)
            else:
                self.obey(os.read(self.control, 64))
        ended, any_left = reap()
        if self.command in ended:
            self.exited = True
            self.report(record(EXITED, ended[self.command], time.monotonic_ns()))
            # If the container's client exited with success, the container has ended, too.
            self.kill_command_due = bool(self.spec.kill_command) and ended[self.command] != 0
        return any_left

    def obey(self, numbers: bytes) -> None:
        """Pass signals on; empty input means that the runner is dead."""
        if not numbers:
            self.runner_lives = False
            self.poller.unregister(self.control)
        for number in numbers:
            if number == signal.SIGKILL:
                self.hurried = True
                self.contain()
                kill_tree()
            else:
                signal_tree(self.command, number)

    def contain(self) -> None:
        """Run the kill command, at most once."""
        if self.kill_command_due:
            self.kill_command_due = False
            run_kill_command(self.spec)

    def end(self, settle_s: float, grace_s: float) -> tuple[int, int]:
        """Send SIGTERM, wait, send SIGKILL; return how many were left and how many survive."""
        left = stuck = 0
        if not self.gone_within(settle_s):
            left = len(descendants())
            signal_tree(self.command, signal.SIGTERM)
            if not self.gone_within(0.0 if self.hurried else grace_s):
                self.contain()
                stuck = kill_all()
        self.contain()
        return left, stuck

    def gone_within(self, timeout_s: float) -> bool:
        """Return True if all ended in time; a SIGKILL from the runner cuts the wait short."""
        hurried_before = self.hurried
        deadline = time.monotonic() + timeout_s
        wait_s = 0.0
        while self.look(wait_s):
            wait_s = deadline - time.monotonic()
            if wait_s <= 0 or self.hurried > hurried_before:
                return False
        return True

    def report(self, data: bytes) -> None:
        try:
            os.write(self.status, data)
        except BrokenPipeError:
            pass  # the runner is dead


def fork() -> int:
    """Fork; if the machine cannot start another process, say so in the run's output."""
    try:
        return os.fork()
    except OSError as error:
        os.write(2, f"radt: no process can be made for this run: {error.strerror}\n".encode())
        os._exit(EXIT_NOT_EXECUTABLE)


def main(argv: list[str]) -> "NoReturn":
    """Start the guard, the keeper and the command's process; see the module's text."""
    control, start, status, barrier = (int(number) for number in argv[:4])
    for fd in (control, start, status, barrier):
        os.set_inheritable(fd, False)
    spec = Specification(
        read_exactly(control, int.from_bytes(read_exactly(control, 8), sys.byteorder))
    )
    for number in (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = fork()
    if keeper:
        for fd in (control, start, status, barrier):
            os.close(fd)
        silence()
        while True:
            pid, wait_status = os.waitpid(-1, 0)
            if pid == keeper:
                break
        if wait_status != 0:
            run_kill_command(spec)
            kill_all()
        os._exit(0)  # at once: there is nothing to clean up
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # not inherited
    signal.signal(signal.SIGCHLD, lambda *_: None)
    this = os.getpid()
    command = fork()
    if command == 0:
        try:
            become_command(spec, this, start, barrier)
        except BaseException:  # noqa: BLE001 - this process must not go on as a second keeper
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(EXIT_NOT_EXECUTABLE)
    os.close(start)
    os.close(barrier)
    silence()
    Keeper(spec, control, status, command).keep()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
