"""Problems of delivery to MLflow: logged once, kept on disk, and logged when they end.

An uploader writes one file per tracking URI, ``delivery/NAME.json`` in the data folder. The backlog
reads it, even when no uploader runs. It contains no password.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from radt import units
from radt.errors import RadtError, StoreError
from radt.masking import masked

log = logging.getLogger("radt.delivery.mlflow")

#: The subject of a problem that concerns everything: MLflow cannot be reached.
EVERYTHING = ""
#: The subject of a problem with radt's own store.
STORE = "store"
#: How often the file is written while a problem stays the same.
_REFRESH_NS = 30 * 10**9
_TEXT_LIMIT = 300
#: A recurring problem is logged again after this long.
_LOG_AGAIN_NS = 600 * 10**9
_MAX_LOGGED = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure, its start (wall clock), and the time of the last attempt."""

    text: str
    since_ns: int
    last_ns: int


def destination_name(store: Path, uri: str) -> str:
    """Return a name for the pair of a store and the address it is delivered to.

    A new password makes no other address of it.
    """
    text = f"{store}\n{masked(uri)}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def problem_file(store: Path, tracking_uri: str) -> Path:
    """Return the file in which the uploader of a store to a tracking URI records its problems."""
    return store.parent / "delivery" / f"{destination_name(store, tracking_uri)}.json"


def read_problems(path: Path) -> dict[str, Problem]:
    """Return problems by the id of their run or workload, or `EVERYTHING`; empty if unknown."""
    try:
        problems = json.loads(path.read_text(encoding="utf-8"))["problems"]
        return {str(subject): Problem(**fields) for subject, fields in problems.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # There was no problem yet, or a power failure interrupted writing: the next attempt records
        # it again.
        return {}


class ProblemLog:
    """Keeps the problems of one uploader. Thread-safe; a full disk does no harm.

    Without a path, they are only in memory. ``label`` is the tracking URI for the file and the log,
    which is masked here.
    """

    def __init__(
        self, path: Path | None, label: str, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._path = path
        self._label = masked(label)
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._problems = {} if path is None else read_problems(path)
        self._written_ns = 0
        self._logged_ns: dict[tuple[str, str], int] = {}

    @property
    def problems(self) -> dict[str, Problem]:
        """Return a copy of the problems."""
        with self._lock:
            return dict(self._problems)

    def note(self, subject: str, text: str) -> bool:
        """Record a failure of a run, a workload or `EVERYTHING`; return whether it was logged.

        It is logged if it is new or has a new reason: the text is the same for the same cause.
        """
        text = masked(" ".join(text.split()))[:_TEXT_LIMIT]
        with self._lock:
            now_ns = self._now_ns()
            known = self._problems.get(subject)
            new = known is None or known.text != text
            since_ns = now_ns if known is None else known.since_ns
            self._problems[subject] = Problem(text, since_ns, now_ns)
            # A problem recorded by an earlier process is new in this process's log.
            first = new or (subject, text) not in self._logged_ns
            if logged := first and self._may_log(subject, text, now_ns):
                log.warning("%s waits: %s", _shown(subject), text)
            if new or now_ns - self._written_ns > _REFRESH_NS:
                self._write(now_ns)
            return logged

    def solved(self, subject: str) -> None:
        """Record that delivery works again; log that if there had been a problem."""
        with self._lock:
            known = self._problems.pop(subject, None)
            if known is None:
                return
            now_ns = self._now_ns()
            self._write(now_ns)
            if (subject, known.text) not in self._logged_ns:
                return
            lasted = units.duration(max(0, now_ns - known.since_ns) / 1e9)
            if self._may_log(subject, "over", now_ns):
                log.warning("%s resumed after %s: %s", _shown(subject), lasted, known.text)

    def keep(self, subjects: Collection[str]) -> None:
        """Drop problems of all other runs and workloads: nothing of them is left to deliver."""
        for subject in self.problems:
            if subject not in (EVERYTHING, STORE) and subject not in subjects:
                self.solved(subject)

    def _may_log(self, subject: str, text: str, now_ns: int) -> bool:
        """Return whether it was not logged recently: an unstable link must not fill a disk."""
        if now_ns - self._logged_ns.get((subject, text), -_LOG_AGAIN_NS) < _LOG_AGAIN_NS:
            return False
        if len(self._logged_ns) >= _MAX_LOGGED:
            self._logged_ns.clear()
        self._logged_ns[subject, text] = now_ns
        return True

    def _write(self, now_ns: int) -> None:
        if self._path is None:
            return
        self._written_ns = now_ns
        temporary = self._path.with_suffix(f".{os.getpid()}")
        try:
            if not self._problems:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(exist_ok=True)
            problems = {
                subject: {
                    "text": problem.text,
                    "since_ns": problem.since_ns,
                    "last_ns": problem.last_ns,
                }
                for subject, problem in self._problems.items()
            }
            content = {"tracking_uri": self._label, "problems": problems}
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.info("cannot write %s: %s", self._path, error.strerror)


def _shown(subject: str) -> str:
    return "delivery to MLflow" if subject in (EVERYTHING, STORE) else f"delivery of {subject}"


class Reports:
    """Collects the successes and failures of the uploader's threads.

    ``answers`` returns how many requests MLflow has answered.
    """

    def __init__(
        self, problem_log: ProblemLog | None = None, answers: Callable[[], int] = lambda: 1
    ) -> None:
        self._problem_log = problem_log or ProblemLog(None, "")
        self._answers = answers
        self._answers_then = 0

    def failed(self, subject: str, error: Exception) -> None:
        """Record that a run or workload must wait."""
        if self._problem_log.note(subject, _text(error)) and not isinstance(error, RadtError):
            log.error("internal error of radt", exc_info=error)

    def everything_failed(self, error: Exception) -> None:
        """Record that all must wait."""
        self._answers_then = self._answers()
        self.failed(STORE if isinstance(error, StoreError) else EVERYTHING, error)

    def worked(self, subject: str) -> None:
        """Record that a run or workload is delivered as far as possible."""
        self._problem_log.solved(subject)
        self._problem_log.solved(STORE)
        if self._answers() > self._answers_then:  # it had data for MLflow
            self._problem_log.solved(EVERYTHING)

    def keep(self, subjects: Collection[str]) -> None:
        """Drop all other runs and workloads: nothing of them is left to deliver."""
        self._problem_log.keep(subjects)


def _text(error: Exception) -> str:
    if isinstance(error, RadtError):
        return error.message
    return f"{type(error).__name__}: {error}"


def latest(problems: Collection[Problem]) -> Problem | None:
    """Return the newest problem, with the start of the oldest."""
    if not problems:
        return None
    last = max(problems, key=lambda problem: problem.last_ns)
    return replace(last, since_ns=min(problem.since_ns for problem in problems))
