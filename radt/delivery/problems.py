"""Problems of uploads: logged once, kept on disk, and logged when they end.

Each upload process writes one file, ``delivery/NAME.KIND.json`` in the data folder, where even a
locked store cannot delay it. The backlog reads it, even when no process runs. It contains no
password.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from radt import units
from radt.errors import RadtError
from radt.files import write_whole
from radt.masking import masked

log = logging.getLogger("radt.delivery")

#: Kinds of destinations.
MLFLOW, POSTGRES = "MLflow", "Postgres"
#: Subject of a problem that affects everything: the destination cannot be reached.
EVERYTHING = ""
#: Subject of a problem with radt's own store.
STORE = "store"
#: How often the file is written while a problem stays the same.
_REFRESH_NS = 30 * 10**9
_TEXT_LIMIT = 500
_ARCHIVE, _WORKLOAD = " archive", "workload "
#: A recurring problem is logged again after this time.
_LOG_AGAIN_NS = 600 * 10**9
_MAX_LOGGED = 1000


@dataclass(frozen=True, slots=True)
class DeliveryProblem:
    """A failure, its start (wall clock), and the time of the last attempt."""

    text: str
    since_ns: int
    last_ns: int


def archive_of(run_id: str) -> str:
    """Return the subject of problems with the archive of a running run, which nobody waits for."""
    return f"{run_id}{_ARCHIVE}"


def workload(workload_id: str) -> str:
    """Return the subject of a workload's problems."""
    return f"{_WORKLOAD}{workload_id}"


def destination_name(store: Path, uri: str) -> str:
    """Return a name for the pair of a store and its upload address.

    Addresses that differ only in the password have the same name.
    """
    text = f"{store}\n{masked(uri)}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def problem_file(store: Path, kind: str, uri: str) -> Path:
    """Return the file for the problems of uploads from a store to an address."""
    return store.parent / "delivery" / f"{destination_name(store, uri)}.{kind.lower()}.json"


def read_problems(store: Path, kind: str, uri: str) -> dict[str, DeliveryProblem]:
    """Return problems by subject: the id of a run, or as named above; empty if unknown."""
    return _read(problem_file(store, kind, uri))[1]


def failing_addresses(store: Path, kind: str) -> Iterator[str]:
    """Yield the addresses to which uploads fail."""
    for path in sorted(store.parent.glob(f"delivery/*.{kind.lower()}.json")):
        address, problems = _read(path)
        if problems and path == problem_file(store, kind, address):
            yield address


def _read(path: Path) -> tuple[str, dict[str, DeliveryProblem]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        problems = content["problems"].items()
        return str(content["address"]), {
            str(subject): DeliveryProblem(**it) for subject, it in problems
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # There was no problem yet, or a power failure interrupted writing. The next attempt records
        # it again.
        return "", {}


class ProblemLog:
    """Keeps the problems of one upload process, for one thread. A full disk causes no error."""

    def __init__(
        self, store: Path, kind: str, uri: str, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._path = problem_file(store, kind, uri)
        self._kind = kind
        self._address = masked(uri)
        self._now_ns = now_ns
        self.problems = read_problems(store, kind, uri)
        self._written_ns = 0
        self._logged_ns: dict[tuple[str, str], int] = {}

    def failed(self, subject: str, error: Exception) -> None:
        """Record that a run, a workload or `EVERYTHING` has to wait."""
        if isinstance(error, RadtError):
            self.note(subject, str(error))
        elif self.note(subject, f"{type(error).__name__}: {error}"):
            log.error("internal error of radt", exc_info=error)

    def note(self, subject: str, text: str) -> bool:
        """Record a failure of a run, a workload or `EVERYTHING`; return whether it was logged.

        It is logged if it is new or has a new reason: the same cause always has the same text.
        """
        text = masked(" ".join(text.split()))[:_TEXT_LIMIT]
        now_ns = self._now_ns()
        known = self.problems.get(subject)
        new = known is None or known.text != text
        since_ns = now_ns if known is None else known.since_ns
        self.problems[subject] = DeliveryProblem(text, since_ns, now_ns)
        # A problem recorded by an earlier process is new in this process's log.
        first = new or (subject, text) not in self._logged_ns
        if logged := first and self._may_log(subject, text, now_ns):
            log.warning("%s waits: %s", self._shown(subject), text)
        if new or now_ns - self._written_ns > _REFRESH_NS:
            self._write(now_ns)
        return logged

    def solved(self, subject: str) -> None:
        """Record that uploads work again; if there was a problem, log that."""
        known = self.problems.pop(subject, None)
        if known is None:
            return
        now_ns = self._now_ns()
        self._write(now_ns)
        if (subject, known.text) not in self._logged_ns:
            return
        lasted = units.duration(max(0, now_ns - known.since_ns) / 1e9)
        if self._may_log(subject, "over", now_ns):
            log.warning("%s resumed after %s: %s", self._shown(subject), lasted, known.text)

    def keep(self, subjects: Collection[str]) -> None:
        """Drop problems of all other runs and workloads: they have nothing left to upload."""
        for subject in list(self.problems):
            if subject not in (EVERYTHING, STORE) and subject not in subjects:
                self.solved(subject)

    def _shown(self, subject: str) -> str:
        all_runs = subject in (EVERYTHING, STORE)
        return f"delivery to {self._kind}" if all_runs else f"delivery of {subject}"

    def _may_log(self, subject: str, text: str, now_ns: int) -> bool:
        """Return whether it was not logged recently: an unstable link must not fill a disk."""
        if now_ns - self._logged_ns.get((subject, text), -_LOG_AGAIN_NS) < _LOG_AGAIN_NS:
            return False
        if len(self._logged_ns) >= _MAX_LOGGED:
            self._logged_ns.clear()
        self._logged_ns[subject, text] = now_ns
        return True

    def _write(self, now_ns: int) -> None:
        self._written_ns = now_ns
        try:
            if not self.problems:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(exist_ok=True)
            problems = {subject: asdict(problem) for subject, problem in self.problems.items()}
            content = {"address": self._address, "problems": problems}
            write_whole(self._path, json.dumps(content, indent=1))
        except OSError as error:
            log.info("cannot write %s: %s", self._path, error.strerror)


@dataclass(frozen=True, slots=True)
class CurrentProblem:
    """The problem to show for a destination, and the start of the oldest one like it.

    ``is_minor``: it only concerns archives of running runs, which nobody waits for.
    """

    text: str = ""
    since_ns: int | None = None
    is_minor: bool = False


def current_problem(store: Path, kind: str, uri: str) -> CurrentProblem:
    """Return the problem that affects everything, else the newest one, archives last."""
    problems = read_problems(store, kind, uri)
    if EVERYTHING in problems:
        problems = {EVERYTHING: problems[EVERYTHING]}
    major = {subject: it for subject, it in problems.items() if not subject.endswith(_ARCHIVE)}
    shown = major or problems
    if not shown:
        return CurrentProblem()
    last = max(shown, key=lambda subject: shown[subject].last_ns)
    since_ns = min(problem.since_ns for problem in shown.values())
    return CurrentProblem(_with_subject(last, shown[last].text), since_ns, not major)


def _with_subject(subject: str, text: str) -> str:
    if subject in (EVERYTHING, STORE):
        return text
    run = f"run {subject.removesuffix(_ARCHIVE)}"
    return f"{subject if subject.startswith(_WORKLOAD) else run}: {text}"
