"""Read values in the background, including those of radt commands that may not be imported."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from radt.errors import RadtError
from radt.processes import command as module_command

ValueT = TypeVar("ValueT")

#: Probing may take at most one part in this many of the time.
_SHARE = 20
#: A probe that takes longer counts as unresponsive; commands wait for servers.
LATE_S, COMMAND_LATE_S = 5.0, 30.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeResult(Generic[ValueT]):
    """Result of a probe; ``value`` and ``error`` are both None before the first one.

    ``late_s`` is how long an overdue result has been pending, in whole limits; 0 if none is.
    """

    value: ValueT | None = None
    error: RadtError | None = None
    late_s: float = 0.0


class Probe(Generic[ValueT]):
    """Reads one value in the background. Thread-safe.

    Args:
        name: The name in the log.
        read: Returns a value; may raise `RadtError`.
        interval_s: The minimum interval; longer if reading is slow.
        late_s: A read that takes longer counts as not answering.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], ValueT],
        interval_s: float,
        late_s: float = LATE_S,
    ) -> None:
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self._late_s = late_s
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._value: ValueT | None = None
        self._error: RadtError | None = None
        self._due_s = 0.0
        self._began_s: float | None = None

    def look(self, wait_s: float = 0.0) -> ProbeResult[ValueT]:
        """Return the newest result, and start another read if it is due.

        Args:
            wait_s: How long to wait for the first result.
        """
        with self._lock:
            if self._began_s is None and time.monotonic() >= self._due_s:
                self._begin()
            known = self._value is not None or self._error is not None
        if not known:
            self._done.wait(wait_s)
        with self._lock:
            waited_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            return ProbeResult(self._value, self._error, waited_s - waited_s % self._late_s)

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        threading.Thread(target=self._run, name=f"system-{self._name}", daemon=True).start()

    def _run(self) -> None:
        value: ValueT | None = None
        error: RadtError | None = None
        began_s = time.monotonic()
        try:
            value = self._read()
        except RadtError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - logged; other parts of the page still work
            _LOG.exception("looking at %s failed", self._name)
            error = RadtError(
                f"reading this failed: {type(unknown).__name__}",
                "See the terminal of `radt dashboard`",
            )
        ended_s = time.monotonic()
        with self._lock:
            self._value, self._error, self._began_s = value, error, None
            self._due_s = ended_s + max(self._interval_s, (ended_s - began_s) * _SHARE)
        self._done.set()


_COMMAND_S = 60.0


def need_linux() -> None:
    """Refuse what only Linux has.

    Raises:
        RadtError: This is not Linux.
    """
    if sys.platform != "linux":
        raise RadtError(
            "Only available on Linux", "Open the dashboard on the machine with the GPUs"
        )


def ask_radt(command: str, *options: str) -> Any:
    """Run a command of radt in a separate process, and return its JSON output.

    Raises:
        RadtError: It fails or times out, or this is not Linux.
    """
    need_linux()
    remedy = f"Run `radt {command}` to see why"
    try:
        done = subprocess.run(
            module_command("radt", command, "--json", *options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RadtError(f"`radt {command}` took longer than {_COMMAND_S:.0f} s", remedy) from error
    except (OSError, ValueError) as error:
        raise RadtError(f"`radt {command}` printed no JSON", remedy) from error
