"""Runs the tools that build environments, with a log, progress and cancellation."""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from radt.errors import EnvironmentBuildError
from radt.masking import masked
from radt.processes import stop_child

#: Seconds between checks of `BuildReport.cancelled`.
_TICK_S = 0.1
#: Minimum interval between reports of progress.
_SAY_EVERY_S = 2.0
#: Seconds that a cancelled tool gets to clean up.
_GRACE_S = 5.0
#: Seconds to wait for output if children of an exited tool hold it open.
_LINGER_S = 1.0
#: Number of output lines in an error.
_TAIL_LINES = 6
_MAX_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The outputs of a build: ``log`` is appended to, ``say`` gets lines of progress."""

    log: Path
    say: Callable[[str], None]
    cancelled: Callable[[], bool]

    def check(self) -> None:
        """Raise EnvironmentBuildError if the build was cancelled."""
        if self.cancelled():
            raise EnvironmentBuildError("building the environment was cancelled")

    def failed(self, message: str, remedy: str = "") -> EnvironmentBuildError:
        """Return an error that names the log."""
        return EnvironmentBuildError(
            message, f"{remedy}{'. ' if remedy else ''}All output is in {self.log}", str(self.log)
        )


@dataclass(slots=True)
class Answer:
    """The output of a tool: ``output`` is its standard output, ``tail`` the last lines of both."""

    code: int = 0
    output: str = ""
    tail: tuple[str, ...] = ()

    @property
    def complaint(self) -> str:
        """Return the last lines of output, for an error."""
        text = "\n".join(self.tail).removesuffix(".")
        return text or f"exit code {self.code} without output"


def run_tool(
    command: Sequence[str],
    report: BuildReport,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    keep_fds: Sequence[int] = (),
    private: bool = False,
) -> Answer:
    """Run a tool to its end and return its output, whatever its exit code.

    Args:
        stdin: Its input; it never waits for a user.
        keep_fds: Descriptors that it and its children inherit: locks that must be held until the
            last of them exits, even if this process is killed.
        private: Its output goes neither to the log nor to progress.

    Raises:
        EnvironmentBuildError: The tool cannot be started, or building was cancelled; its process
            group has ended then.
    """
    report.check()
    name = Path(command[0]).name
    try:
        report.log.parent.mkdir(parents=True, exist_ok=True)
        with (
            report.log.open("ab") as log,
            subprocess.Popen(
                list(command),
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(keep_fds),
                start_new_session=True,
            ) as process,
        ):
            if not private:
                log.write(f"$ {masked(shlex.join(command))}\n".encode())
            return _Conversation(name, process, None if private else log, report).hold(stdin)
    except OSError as error:
        raise report.failed(f"{name} could not be run: {error.strerror}") from error


@dataclass(slots=True)
class _Conversation:
    """A running tool."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None  # None if its output is private
    report: BuildReport
    answer: bytearray = field(default_factory=bytearray)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    partial: dict[int, bytes] = field(default_factory=dict)

    def hold(self, stdin: str) -> Answer:
        try:
            self._give(stdin)
            self._listen()
        except BaseException:
            stop_child(self.process, _GRACE_S, group=True)
            raise
        finally:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()
        return Answer(self.process.wait(), self.answer.decode("utf-8", "replace"), tuple(self.tail))

    def _give(self, text: str) -> None:
        assert self.process.stdin is not None
        try:
            with self.process.stdin as stream:  # a few lines, which fit into a pipe's buffer
                stream.write(text.encode())
        except BrokenPipeError:
            pass  # it has already exited, and its output says why

    def _listen(self) -> None:
        """Read until both streams are closed, or the tool has ended and no more output comes."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        started_s = reported_s = time.monotonic()
        silent_since_s: float | None = None
        reported = ""
        with selectors.DefaultSelector() as selector:
            for stream in (self.process.stdout, self.process.stderr):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                self.report.check()
                ready = selector.select(_TICK_S)
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 16)
                    if not piece:
                        selector.unregister(key.fileobj)
                    self._hear(key.fd, piece, answers=key.fileobj is self.process.stdout)
                now_s = time.monotonic()
                last = self.tail[-1] if self.tail else ""
                if self.log is not None and now_s - reported_s >= _SAY_EVERY_S and last != reported:
                    reported_s, reported = now_s, last
                    self.report.say(f"{self.name}, {now_s - started_s:.0f} s: {last}")
                if ready or self.process.poll() is None:
                    silent_since_s = None
                elif silent_since_s is None:
                    silent_since_s = now_s
                elif now_s - silent_since_s > _LINGER_S:
                    break
        while self.process.poll() is None:  # it has closed its output but is still running
            self.report.check()
            time.sleep(_TICK_S)

    def _hear(self, fd: int, piece: bytes, *, answers: bool) -> None:
        """Handle output; an empty piece means end of file."""
        if answers and len(self.answer) < _MAX_ANSWER_BYTES:
            self.answer += piece
        *lines, rest = (self.partial.get(fd, b"") + piece).replace(b"\r", b"\n").split(b"\n")
        self.partial[fd] = rest if piece else b""
        if not piece:
            lines.append(rest)
        for line in lines:
            text = masked(line.decode("utf-8", "replace").rstrip())
            if text:
                self.tail.append(text.strip())
                if self.log is not None:
                    self.log.write(text.encode() + b"\n")
        if self.log is not None:
            self.log.flush()
