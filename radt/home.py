"""Paths of radt's files: the data folder of a project and the runtime folder of a user.

::

    radt-data/            one per project: $RADT_HOME, else from settings, else ./radt-data
    ├── mlflow.db         MLflow's tracking database (unless a tracking URI is set)
    ├── radt.db           the sample store
    ├── artifacts/        MLflow's artifacts
    ├── logs/             output of detached runners
    ├── place             location of this folder (`radt.store.place`)
    └── runs/RUN_ID/      spool of one run
        ├── journal/      written by the training processes, one folder per process
        ├── artifacts/    files waiting for upload to the artifact store
        ├── archive/      the run's archive, waiting for upload
        ├── run.json      description of the run; removed once the store has all its data
        ├── ended         exists once the run has ended
        ├── damaged/      damaged journal files, if there are any
        └── output.log    the run's complete output

The runtime folder (socket, locks and log of the collector) is private to the user and gone after a
reboot: ``$RADT_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/radt``, else ``/tmp/radt-UID``.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from radt import settings
from radt.errors import UsageError
from radt.masking import is_postgres
from radt.paths import expanded, sqlite_uri

HOME_VARIABLE = "RADT_HOME"
#: MLflow's address, for a run that is not in MLflow yet (`radt.run.mlflow_calls`).
MLFLOW_PENDING_VARIABLE = "RADT_MLFLOW_PENDING"
RUNTIME_VARIABLE = "RADT_RUNTIME_DIR"
TRACKING_VARIABLE = "RADT_TRACKING_URI"
STORE_VARIABLE = "RADT_STORE_URI"
#: Tracking URI that means "without MLflow".
NO_MLFLOW = "none"
#: Store URI that means "without Postgres", overriding the settings file.
NO_POSTGRES = "none"
#: Set for training processes: their run's id and spool folder.
RUN_ID_VARIABLE = "RADT_RUN_ID"
RUN_DIR_VARIABLE = "RADT_RUN_DIR"
#: Path of the runner's socket, where rows wait for each other (`radt.runner.barrier`).
BARRIER_VARIABLE = "RADT_BARRIER"
#: Limits of the script's ``with radt.Run()`` block (`radt.run.limits`).
MAX_TIME_VARIABLE = "RADT_MAX_TIME_S"
MAX_EPOCH_VARIABLE = "RADT_MAX_EPOCH"
#: Artifact folders for images and tables that scripts log by name (`radt.run.media`), and for the
#: reports of profilers.
IMAGES, TABLES, REPORTS = "images", "tables", "profiles"
#: Set in containers, where the keeper does not reap the run's processes: the script records its own
#: usage.
OWN_TOTALS_VARIABLE = "RADT_OWN_TOTALS"
#: Variables that describe a process's run. Processes of another run must not inherit them.
VARIABLES_OF_A_RUN = (
    *(RUN_ID_VARIABLE, RUN_DIR_VARIABLE, MLFLOW_PENDING_VARIABLE, OWN_TOTALS_VARIABLE),
    *("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "RADT_MLFLOW_RUN_ID"),
    *("RADT_EXPERIMENT", "RADT_WORKLOAD", "RADT_LETTER", "RADT_NAME", "RADT_DEVICES"),
    *("RADT_PRESENT", "RADT_TORCH", "RADT_TORCHPROF", "RADT_TORCHPROF_OPTIONS", BARRIER_VARIABLE),
)


@dataclass(frozen=True, slots=True)
class RunDir:
    """The spool folder of one run."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def damaged(self) -> Path:
        """Folder for damaged journal files; exists only if there are any."""
        return self.path / "damaged"

    @property
    def ended(self) -> Path:
        """File that exists once the run has ended (`radt.collector.manifest.mark_ended`)."""
        return self.path / "ended"

    @property
    def output_log(self) -> Path:
        return self.path / "output.log"

    def files(self) -> Iterator[Path]:
        """Yield all artifacts, then the run's output.

        Regular files only: opening a named pipe could block forever, and a link to a folder could
        lead anywhere. A link to a file counts as the file.
        """
        for folder, folders, names in os.walk(self.artifacts):
            folders.sort()
            for name in sorted(names):
                file = Path(folder) / name
                if file.is_file():
                    yield file
        if self.output_log.is_file():
            yield self.output_log

    def create(self) -> RunDir:
        """Create the folders, readable by their user only. Idempotent."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.journal.mkdir(parents=True, exist_ok=True)
        self.artifacts.mkdir(parents=True, exist_ok=True)
        return self


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder of a project."""

    path: Path

    @classmethod
    def resolve(
        cls, explicit: Path | str | None = None, *, warn: Callable[[str], None] | None = None
    ) -> Home:
        """Return the given folder, else ``$RADT_HOME``, else the settings' folder. Create nothing.

        Expands a leading ``~``; relative paths start in `radt.paths.start_folder`.

        Args:
            explicit: The given folder.
            warn: Receives a description of a problem with a setting, whose default is then used:
                training must not fail because of it.

        Raises:
            UsageError: A setting has a problem, and ``warn`` is None.
        """
        return cls(settings.value_for_script(settings.HOME, warn, os.fspath(explicit or "")))

    @property
    def store_path(self) -> Path:
        return self.path / "radt.db"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def mlflow_database(self) -> Path:
        return self.path / "mlflow.db"

    @property
    def default_tracking_uri(self) -> str:
        return sqlite_uri(self.mlflow_database)

    def tracking_uri(
        self, explicit: str | None = None, *, warn: Callable[[str], None] | None = None
    ) -> str:
        """Return the given URI, else a variable's, else the settings', else SQLite in the folder.

        The variables are ``$RADT_TRACKING_URI`` and ``$MLFLOW_TRACKING_URI``. Returns an empty
        string if the URI is ``none``: runs are then recorded in radt's store only.

        Args:
            explicit: The given URI.
            warn: See `resolve`.

        Raises:
            UsageError: See `resolve`.
        """
        chosen = settings.value_for_script(settings.TRACKING_URI, warn, explicit)
        return "" if chosen.lower() == NO_MLFLOW else chosen or self.default_tracking_uri

    def store_uri(
        self,
        explicit: str | None = None,
        *,
        tracking_uri: str = "",
        warn: Callable[[str], None] | None = None,
    ) -> str:
        """Return the Postgres database that this folder's store is copied to; empty for none.

        It is the given URI, else ``$RADT_STORE_URI``, else the settings', else the tracking URI if
        that is a Postgres database. Empty if the first of them that is set is ``none``.

        Args:
            explicit: The given URI.
            tracking_uri: MLflow's.
            warn: See `resolve`; there is no database if the setting has a problem.

        Raises:
            UsageError: See `resolve`.
        """
        chosen = settings.value_for_script(settings.STORE_URI, warn, explicit, instead=NO_POSTGRES)
        chosen = chosen or (tracking_uri if is_postgres(tracking_uri) else "")
        return "" if chosen == NO_POSTGRES else chosen

    def run_dir(self, run_id: str) -> RunDir:
        return RunDir(self.path / "runs" / run_id)

    def create(self) -> Home:
        """Create the folder, ignored by git. Idempotent.

        Raises:
            UsageError: The folder cannot be created.
        """
        try:
            self.artifacts.mkdir(parents=True, exist_ok=True)
            (self.path / "runs").mkdir(mode=0o700, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists() or not ignore.stat().st_size:  # a full disk leaves it empty
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Free space on its disk, or set" if full else "Set"
            raise UsageError(
                f"the data folder {self.path} cannot be used: {error.strerror}",
                f"{remedy} {HOME_VARIABLE} to a folder you may write to",
            ) from error
        return self


def runtime_dir() -> Path:
    """Return the user's private folder for sockets and locks, created with mode 700 if missing.

    Raises:
        UsageError: The folder cannot be created, belongs to another user or is open to others.
    """
    explicit = os.environ.get(RUNTIME_VARIABLE)
    if explicit:
        path = expanded(explicit)
    elif xdg := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(xdg) / "radt"
    else:
        path = Path(tempfile.gettempdir()) / f"radt-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the runtime folder {path} cannot be used: {error.strerror}",
            f"Set {RUNTIME_VARIABLE} to a folder of yours, with a short path, on a local disk",
        ) from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(
            f"the runtime folder {path} is not private to you",
            f"Remove it, or set {RUNTIME_VARIABLE} to a folder of yours with mode 700",
        )
    return path
