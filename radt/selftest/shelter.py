"""A place of its own for measurements: data folder, runtime folder, collector; nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radt import procfs
from radt.errors import LaunchError, UsageError
from radt.home import HOME_VARIABLE, RUNTIME_VARIABLE, TRACKING_VARIABLE, Home
from radt.selftest.janitor import processes_of

#: Settings of the user that change what tracking costs: they hold here, too.
_KEPT = frozenset({"RADT_FLUSH_S", "RADT_ARCHIVE_S", "RADT_COLLECTOR_HANG_S"})
#: It stays from the first measurement to the last; the janitor ends it.
_IDLE_S = 600
_CLEAN_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class TrackerUse:
    """CPU time of all the tracker's processes so far, and the memory of those alive."""

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Shelter:
    """Where it is; ``env`` leads every process that is started with it there."""

    home: Home
    runtime: Path
    env: Mapping[str, str]

    def command(self, module: str, *arguments: str) -> list[str]:
        """A module of radt as a program; a file in the current folder is not taken for it."""
        return [sys.executable, "-P", "-m", module, *arguments]

    def ask(self, module: str, *arguments: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Run a module of this package to its end; what it prints last is JSON.

        Raises:
            LaunchError: It failed, or took too long.
        """
        done = self.run(self.command(module, *arguments), timeout_s=timeout_s)
        lines = done.stdout.strip().splitlines()
        try:
            answer = json.loads(lines[-1])
        except (IndexError, ValueError):
            raise LaunchError(f"{module} printed no result: {_last_line(done.stdout)}") from None
        assert isinstance(answer, dict)
        return answer

    def run(
        self, command: Sequence[str], *, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end.

        Raises:
            LaunchError: It failed, or took too long.
        """
        try:
            done = subprocess.run(
                command,
                cwd=self.home.path,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                start_new_session=True,  # Ctrl-C is for us; the janitor ends what we leave
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{_name(command)} took longer than {timeout_s:.0f} s") from None
        except OSError as error:
            raise LaunchError(f"{_name(command)} cannot be started: {error.strerror}") from error
        if done.returncode != 0:
            said = _last_line(done.stderr) or _last_line(done.stdout) or "it said nothing"
            raise LaunchError(
                f"{_name(command)} ended with exit code {done.returncode}: {said}", self._log_end()
            )
        return done

    def _log_end(self) -> str | None:
        """What the collector said last: its log goes with the folder."""
        try:
            text = (self.runtime / "collector.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        last = _last_line(text)
        return f"The collector's log ends with: {last}" if last else None

    def tracker_use(self) -> TrackerUse:
        """Of collector, guardian and those who deliver, ended ones included.

        They are told from the runs by the data folder, which a collector has none of.
        """
        mark = f"{HOME_VARIABLE}=".encode()
        ticks = rss_bytes = 0
        for pid in processes_of(self.runtime):
            if any(entry.startswith(mark) for entry in procfs.environment(pid)):
                continue
            if (stat := procfs.process_stat(pid)) is not None:
                ticks += stat.cpu_ticks
                rss_bytes += stat.rss_bytes
        return TrackerUse(ticks / procfs.TICKS_PER_S, rss_bytes)


@contextmanager
def sheltered(beside: Path) -> Iterator[Shelter]:
    """A shelter on the disk of a data folder, which need not exist and is not touched.

    Its folder is hidden, ignored by git, and stands in the data folder or where that would be made.
    Folders and processes are gone afterwards, also if this process is killed.

    Raises:
        UsageError: Nothing can be written there.
    """
    parent = beside.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{parent} cannot be written, and the selftest measures its disk",
            f"Set {HOME_VARIABLE} (or --home) to a folder you may write to",
        )
    janitor = subprocess.Popen(
        [sys.executable, "-P", "-m", "radt.selftest.janitor", str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert janitor.stdin is not None
    assert janitor.stdout is not None
    try:
        line = janitor.stdout.readline()
        if not line:
            _, said = janitor.communicate()
            raise UsageError(
                f"no folder for the selftest can be made in {parent}: {_last_line(said)}",
                f"Set {HOME_VARIABLE} (or --home) to a folder with space that you may write to",
            )
        places = json.loads(line)
        home = Home(Path(places["data"])).create()
        runtime = Path(places["runtime"])
        yield Shelter(home, runtime, _environment(home, runtime))
    finally:
        if not janitor.stdin.closed:
            janitor.stdin.close()
        try:
            janitor.wait(_CLEAN_UP_S)
        finally:
            janitor.stdout.close()
            if janitor.stderr is not None:
                janitor.stderr.close()


def _environment(home: Home, runtime: Path) -> Mapping[str, str]:
    """The user's, without what leads to the user's runs, stores and servers."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("RADT_", "MLFLOW_"))
    }
    return kept | {
        RUNTIME_VARIABLE: str(runtime),
        HOME_VARIABLE: str(home.path),
        TRACKING_VARIABLE: home.default_tracking_uri,
        "RADT_COLLECTOR_IDLE_S": str(_IDLE_S),
    }


def _name(command: Sequence[str]) -> str:
    """What of a command people know: the module, else the program."""
    words = list(command)
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
