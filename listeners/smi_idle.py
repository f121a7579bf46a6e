"""What cards draw while nobody uses them: measured when seen, and kept for busier times.

The values stand in a file of the runtime folder, so that a run on a card that is busy when it
starts can use one of the same day. After a reboot they are measured again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from radt.errors import UsageError
from radt.home import runtime_dir

log = logging.getLogger(__name__)

FILE_NAME = "gpu-idle-power.json"
_MAX_AGE_S = 24 * 3600.0
#: A stretch this long says more than any that was measured before. Of shorter ones the lowest
#: counts: a card takes a while to calm down after work.
_LONG_S = 30.0
#: A file is written again for a change of this share, or at this age.
_NOTABLE = 0.01
_REFRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Mean power of a card over a stretch without compute processes; times in s since 1970."""

    watts: float
    seconds: float
    started_at: float
    measured_at: float


class IdlePowers:
    """The newest idle power of each card, by its UUID."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._known: dict[str, IdlePower] = {}
        self._written: dict[str, IdlePower] = {}
        self._path: Path | None = None

    def open(self) -> None:
        """Read what was measured before."""
        try:
            self._path = runtime_dir() / FILE_NAME
        except UsageError as error:
            log.warning("idle power of GPUs is not kept: %s", error.message)
            return
        self._known = _read(self._path)
        self._written = dict(self._known)

    def watts(self, uuid: str) -> float | None:
        """The idle power of this card, None if it was not measured within a day."""
        known = self._recent(uuid)
        return None if known is None else known.watts

    def measured(self, uuid: str, watts: float, seconds: float) -> None:
        """A stretch of idleness until now."""
        now_s = self._wall_s()
        new = IdlePower(watts, seconds, now_s - seconds, now_s)
        known = self._recent(uuid)
        same = known is not None and new.started_at < known.measured_at
        if known is None or same or seconds >= _LONG_S or watts < known.watts:
            self._known[uuid] = new
            self._write(uuid, new)

    def _recent(self, uuid: str) -> IdlePower | None:
        known = self._known.get(uuid)
        if known is None or self._wall_s() - known.measured_at > _MAX_AGE_S:
            return None
        return known

    def _write(self, uuid: str, new: IdlePower) -> None:
        old = self._written.get(uuid)
        if (
            old is not None
            and new.measured_at - old.measured_at < _REFRESH_S
            and abs(new.watts - old.watts) <= _NOTABLE * old.watts
        ):
            return
        self._written[uuid] = new
        if self._path is None:
            return
        # Other listeners may have measured other cards meanwhile.
        everything = _read(self._path) | {uuid: new}
        # Of this thread alone: there is a listener for each interval that runs ask for.
        temporary = self._path.with_name(f"{FILE_NAME}.{os.getpid()}-{threading.get_ident()}")
        try:
            temporary.write_text(
                json.dumps({one: asdict(power) for one, power in everything.items()}),
                encoding="utf-8",
            )
            temporary.replace(self._path)
        except OSError as error:
            log.warning("idle power of GPUs cannot be kept in %s: %s", self._path, error)
            with suppress(OSError):
                temporary.unlink()
            self._path = None


def _read(path: Path) -> dict[str, IdlePower]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {uuid: IdlePower(**one) for uuid, one in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s is damaged and left out: %s", path, error)
        return {}
