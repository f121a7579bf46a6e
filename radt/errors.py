"""Every error radt raises on purpose.

::

    RadtError
    ├── UsageError              invalid input                            exit code 2
    │   ├── ExperimentError     problems of an experiment file, all at once
    │   ├── RunNotFoundError    no run, or several, match an id
    │   └── MissingPackageError an optional package is not installed
    ├── StatusError             a status could not be written back to an experiment file
    │   └── RowsChangedError    the file no longer has the row
    ├── HeldError               another runner holds the experiment      exit code 3
    ├── DeclinedError           the user declined to continue
    ├── LaunchError             a training process could not be started
    ├── DeviceError             devices cannot be set up as a workload requests
    ├── EnvironmentBuildError   an environment could not be built
    ├── CollectorError          the collector cannot be reached or refused
    ├── ListenerError           a listener failed
    │   └── ListenerUnavailableError
    ├── StoreError              the sample store cannot be read or written
    │   ├── SchemaTooNewError
    │   ├── SchemaTooOldError
    │   └── CodecError
    ├── JournalError            a journal file is invalid
    ├── TrackingError           MLflow refused or could not be reached
    ├── UploadError             the wait ended before uploads were complete
    ├── SourceError             files to import cannot be read
    ├── LoaderError             a loader of radt.loaders cannot produce its next batch
    ├── TrainingError           a technique of radt.training cannot start or continue
    ├── ClusterError            an engine refuses, or a submission cannot continue
    │   ├── EngineAwayError     the engine does not respond for now
    │   └── SubmitLimitError    the engine accepts no more jobs of this user for now
    ├── ArchiveError            the archive of a run cannot be read, or is incomplete
    └── StackError              compose.yaml or one of its servers cannot be set up

A message says what is wrong; ``remedy`` says what to do about it. The command line prints both
as one paragraph and exits with ``exit_code``; a traceback there is a bug. (`radt compare` has exit
codes 4 and 5 for conditions that are met or inconclusive, which are not errors.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST_CHARACTERS = 1000


def described(error: BaseException) -> str:
    """Return type and text of an exception from any code, truncated to 1,000 characters.

    Only the type, if the text cannot be made: an exception's ``str()`` may raise, too.

    >>> described(KeyError("missing")), described(ValueError())
    ("KeyError: 'missing'", 'ValueError')
    """
    name, text = type(error).__name__, text_of(error)
    return cut(f"{name}: {text}" if text else name)


def text_of(value: object) -> str:
    """Return the text of any object, or an empty text if its ``str()`` raises."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - the caller handles an exception that matters more
        return ""


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Truncate a text to ``most`` characters, with an ellipsis if it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class RadtError(Exception):
    """Base of all errors that radt raises on purpose.

    Args:
        message: The cause, in plain words.
        remedy: What the user can do about it.
    """

    exit_code: int = 1

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message.removesuffix('.')}. {self.remedy}" if self.remedy else self.message


class UsageError(RadtError):
    """The input is invalid; nothing was started."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an experiment file.

    ``line`` is 1-based and counts physical lines; ``column`` is the header's name. Either is None
    if it does not apply.
    """

    cause: str
    remedy: str = ""
    line: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        where = ", ".join(part for part in (line, self.column) if part)
        what = f"{self.cause}. {self.remedy}" if self.remedy else self.cause
        return f"{where}: {what}" if where else what


class ExperimentError(UsageError):
    """An experiment file has problems, all listed in ``problems``."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        count = len(problems)
        super().__init__(f"{path}: {count} problem{'s' if count != 1 else ''}, nothing was started")
        self.path = path
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Return all problems, one per line: a traceback shows nothing else of them."""
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class RunNotFoundError(UsageError):
    """No run, or more than one, matches the given id or name."""


class MissingPackageError(UsageError, ImportError):
    """An optional package is not installed. Also an ImportError, like Python's own."""


class StatusError(RadtError):
    """The status of a row could not be written to its experiment file; the file is unchanged."""


class RowsChangedError(StatusError):
    """The file no longer has some of the rows; radt wrote the statuses of the others.

    ``lines`` are the line numbers that these rows had when the file was read.
    """

    def __init__(self, message: str, remedy: str | None, lines: Sequence[int]) -> None:
        super().__init__(message, remedy)
        self.lines = tuple(lines)


class HeldError(RadtError):
    """Another runner holds the experiment file."""

    exit_code = 3


class DeclinedError(RadtError):
    """The user declined to continue; nothing was started."""


class LaunchError(RadtError):
    """A training process could not be started."""


class DeviceError(RadtError):
    """Devices cannot be shared or divided as a workload requests, or differ from the request."""


class EnvironmentBuildError(RadtError):
    """An environment could not be built; ``log`` names the file with its tool's output."""

    def __init__(self, message: str, remedy: str | None = None, log: str = "") -> None:
        super().__init__(message, remedy)
        self.log = log


class CollectorError(RadtError):
    """The collector cannot be started, cannot be reached, or refused a request."""


class ListenerError(RadtError):
    """A listener failed."""


class ListenerUnavailableError(ListenerError):
    """A listener cannot work on this machine."""


class StoreError(RadtError):
    """The sample store cannot be read or written."""


class NoStoreError(StoreError):
    """The database does not contain a store."""


class ReadOnlyStoreError(StoreError):
    """The store is read-only."""


class SchemaTooNewError(StoreError):
    """The store was written by a newer radt."""


class SchemaTooOldError(StoreError):
    """The store must be upgraded before this radt can use it."""


class CodecError(StoreError):
    """A chunk of samples cannot be encoded or decoded."""


class JournalError(RadtError):
    """A journal file is invalid."""


class TrackingError(RadtError):
    """MLflow refused a request or could not be reached."""


class UploadError(RadtError):
    """The wait ended before MLflow or Postgres had all data."""


class SourceError(RadtError):
    """Files to import cannot be read, or differ from their earlier import."""


class LoaderError(RadtError):
    """A loader of `radt.loaders` cannot produce its next batch or resume from a state."""


class TrainingError(RadtError):
    """A technique of `radt.training` (job, segment, validation) cannot start or continue."""


class ClusterError(RadtError):
    """A cluster engine is missing or refuses, or a submission cannot continue."""


class EngineAwayError(ClusterError):
    """The engine does not respond for now; a later try may succeed."""


class SubmitLimitError(ClusterError):
    """The engine accepts no more jobs of this user for now, or fewer at once."""


class ArchiveError(RadtError):
    """The archive of a run cannot be written or read, or is incomplete."""


class StackError(RadtError):
    """``compose.yaml`` or one of its servers cannot be set up."""
