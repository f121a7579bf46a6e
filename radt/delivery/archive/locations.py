"""Locations of archives: a folder, S3, or the artifacts of an MLflow run, wherever they are.

boto3 and MLflow are imported when an address needs them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self
from urllib.parse import unquote, urlsplit

from radt.beneath import list_files, open_below
from radt.delivery.archive import ARCHIVE_FOLDER, DESCRIPTION_FILE, FileMissingError
from radt.delivery.mlflow.variables import FOR_COMMANDS, direct_uri, set_client_defaults
from radt.delivery.s3 import S3Folder
from radt.errors import ArchiveError, UsageError
from radt.home import Home
from radt.masking import masked
from radt.settings import DASHBOARD_ARTIFACT_ROOT, SettingLevel, variable
from radt.store.bundle import SUFFIX
from radt.store.records import RunRecord
from radt.tags import RUN_ID

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

_RUN_ID = re.compile(r"[0-9a-f]{32}")
#: ``runs:/ID``, and a folder in its artifacts.
_RUN_URI = re.compile(r"runs:/+(?P<run>[^/]+)(?:/(?P<path>.*))?")
#: Schemes of artifact addresses on a server, and those that MLflow resolves to another address.
_SERVERS = frozenset({"http", "https", "mlflow-artifacts", "ftp", "sftp"})
_INDIRECT = frozenset({"runs", "models"})
#: Remedy for an address without an archive.
HINT = (
    "Give a file RUN.radt, the folder or URI that contains such files, or runs:/ID for the "
    "artifacts of an MLflow run"
)


class Location(Protocol):
    """A folder, local or remote."""

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the files directly in it, by name; none if it is missing.

        Raises:
            ArchiveError: The folder cannot be listed.
        """

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file of the folder.

        Raises:
            ArchiveError: The file does not exist, or cannot be read or copied.
        """

    def below(self, folder: str) -> Location:
        """Return a subfolder."""

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files below it; none in MLflow, where archives are in one folder.

        Raises:
            ArchiveError: The folder cannot be listed.
        """


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def sizes(self) -> dict[str, int]:
        with _files(str(self)):
            try:
                entries = list(os.scandir(self.path))
            except (FileNotFoundError, NotADirectoryError):
                return {}
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def fetch(self, path: str, target: Path) -> None:
        with _files(f"{self}/{path}"):
            shutil.copyfile(self.path / path, target)

    def below(self, folder: str) -> LocalFolder:
        return LocalFolder(self.path / folder)

    def paths(self) -> Iterator[str]:
        with _files(str(self)):
            for folder, folders, names in os.walk(self.path, onerror=_refuse):
                folders.sort()
                yield from (str(Path(folder, name).relative_to(self.path)) for name in names)


@dataclass(frozen=True, slots=True)
class _OwnFolder:
    """A local folder from MLflow that the dashboard may show."""

    root: Path
    folder: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the folder if it may be shown.

        Raises:
            ArchiveError: It is elsewhere, or a link leads out of its root.
        """
        allowed = variable(DASHBOARD_ARTIFACT_ROOT)
        roots = [Home.resolve().artifacts]
        roots += [] if allowed.level is SettingLevel.DEFAULT else [allowed.value]
        for root in roots:
            # Links in the root's own path are allowed, as its owner chose it; links below it are
            # not.
            if path.is_absolute() and path.is_relative_to(root):
                own = cls(root.resolve(), str(path.relative_to(root)))
                if own.root / own.folder == (own.root / own.folder).resolve():
                    return own
        raise ArchiveError(
            f"MLflow keeps these artifacts at {path}, which is not a folder within "
            f"{' or '.join(map(str, roots))}",
            f"If the dashboard may show them, set {DASHBOARD_ARTIFACT_ROOT.label} where it starts",
        )

    def open(self, path: str) -> BinaryIO:
        return open_below(self.root, f"{self.folder}/{path}")

    def files(self, below: str) -> Iterator[tuple[str, int]]:
        """Yield path and size in bytes of each file below one of its folders."""
        for path, size in list_files(self.root / self.folder / below):
            yield f"{below}/{path}".lstrip("/"), size


@dataclass(frozen=True, slots=True)
class MlflowLocation:
    """A folder in an MLflow run's artifacts, usually read through MLflow's server."""

    tracking_uri: str
    run_id: str
    path: str

    def __str__(self) -> str:
        return f"runs:/{self.run_id}/{self.path}".rstrip("/")

    @classmethod
    def of(cls, record: RunRecord) -> Self | None:
        """Return a run's location in MLflow; None unless the settings name the same MLflow.

        A store may name any address, and MLflow's credentials are sent to it.
        """
        if not record.mlflow_run_id or not record.tracking_uri:
            return None
        try:
            own = Home.resolve().tracking_uri()
        except UsageError:
            return None
        if record.tracking_uri.rstrip("/") != own.rstrip("/"):
            return None
        return cls(record.tracking_uri, record.mlflow_run_id, "")

    def sizes(self) -> dict[str, int]:
        return {Path(path).name: size for path, size in self._entries(deep=False)}

    def files(self, most: int) -> dict[str, int]:
        """Return the size in bytes of at most ``most`` files below the folder, by path.

        Raises:
            FileMissingError: MLflow does not have the run.
            ArchiveError: The server cannot be reached, or its artifacts may not be read here.
        """
        return dict(itertools.islice(self._entries(deep=True), most))

    def _entries(self, *, deep: bool) -> Iterator[tuple[str, int]]:
        artifacts = self._artifacts()
        if isinstance(artifacts, _OwnFolder):
            for path, size in artifacts.files(self.path):
                if deep or path.rpartition("/")[0] == self.path:
                    yield path, size
            return
        with _mlflow(str(self)):
            waiting = [self.path]
            while waiting:
                for entry in artifacts.list_artifacts(waiting.pop() or None):
                    if not entry.is_dir:
                        yield entry.path, entry.file_size or 0
                    elif deep:
                        waiting.append(entry.path)

    def fetch(self, path: str, target: Path) -> None:
        where = f"{self}/{path}"
        inside = f"{self.path}/{path}".lstrip("/")
        artifacts = self._artifacts()
        with _mlflow(where), _files(where):
            if isinstance(artifacts, _OwnFolder):
                with artifacts.open(inside) as file, target.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
                return
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                copied: str = artifacts.download_artifacts(inside, folder)  # type: ignore[no-untyped-call]
                Path(copied).replace(target)

    def _artifacts(self) -> _OwnFolder | ArtifactRepository:
        """Return the location of the run's artifacts: a folder of this machine, or MLflow's access.

        Anybody who may create an experiment in MLflow chooses the location. So it may be a path of
        this machine, or a server that is to receive MLflow's credentials.

        Raises:
            ArchiveError: They may not be read here.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        _, uri = _artifact_uri(self.run_id, self.tracking_uri)
        address = urlsplit(uri)
        if address.scheme in ("", "file"):
            return _OwnFolder.of(Path(unquote(address.path) if address.scheme else uri))
        own_host = _host_of(self.tracking_uri)
        if address.scheme in _INDIRECT or (
            address.scheme in _SERVERS and _host_of(uri) not in ("", own_host)
        ):
            raise ArchiveError(
                f"{self} is stored at {masked(uri)}, and radt reads files only from the MLflow "
                "server that it is set to",
                "Open it in MLflow",
            )
        with _mlflow(str(self)):
            # Not by the run's id, because MLflow would be asked again for the location.
            return get_artifact_repository(uri, tracking_uri=self.tracking_uri)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run.

        Raises:
            FileMissingError: MLflow does not have the run.
            ArchiveError: The server cannot be reached.
        """
        set_client_defaults(FOR_COMMANDS)
        from mlflow.entities import RunTag
        from mlflow.tracking import MlflowClient

        from radt.delivery.mlflow.limits import MAX_TEXTS, clean_text, unique_keys

        keys = unique_keys(tags)
        new = [RunTag(keys[name], clean_text(text)) for name, text in tags.items()]
        with _mlflow(str(self)):
            client = MlflowClient(self.tracking_uri)
            for first in range(0, len(new), MAX_TEXTS):
                client.log_batch(self.run_id, tags=new[first : first + MAX_TEXTS])

    def below(self, folder: str) -> MlflowLocation:
        return MlflowLocation(self.tracking_uri, self.run_id, f"{self.path}/{folder}".strip("/"))

    def paths(self) -> Iterator[str]:
        return iter(())


def is_address(given: str | Path) -> bool:
    """Return whether a text is a location rather than the id of a run.

    >>> is_address("s3://bucket/radt"), is_address("runs:/0123"), is_address("0123456789ab")
    (True, True, False)
    """
    if isinstance(given, Path) or "://" in given or given.startswith("runs:/"):
        return True
    if "/" in given or given.endswith(SUFFIX):
        return True
    folder = LocalFolder(Path(given))
    names = [*folder.sizes(), *folder.below(ARCHIVE_FOLDER).sizes()]
    return any(is_of_archive(f"{ARCHIVE_FOLDER}/{name}") for name in names)


def location_of(given: str | Path, tracking_uri: str = "") -> Location:
    """Return the location of a folder, ``s3://bucket/prefix``, ``runs:/ID`` or an MLflow run's id.

    Folders and S3 are not checked for existence.

    Raises:
        ArchiveError: The text is none of these, or MLflow does not have the run.
    """
    text = str(given)
    if isinstance(given, Path):
        return LocalFolder(given.absolute())
    if match := _RUN_URI.fullmatch(text):
        return _of_run(match["run"], (match["path"] or "").strip("/"), tracking_uri)
    scheme = urlsplit(text).scheme if "://" in text or text.startswith("file:") else ""
    if scheme == "s3":
        return S3Folder.of(text)
    if scheme == "file":
        return LocalFolder(Path(unquote(urlsplit(text).path)))
    if scheme:
        raise ArchiveError(
            f"Expected a folder, s3://bucket/prefix or runs:/ID, got {masked(text)}", HINT
        )
    if _RUN_ID.fullmatch(text) and not Path(text).exists():
        return _of_run(text, "", tracking_uri)
    return LocalFolder(Path(text).absolute())


def is_of_archive(path: str) -> bool:
    """Return whether a file indicates that its folder is an archive."""
    folder, _, name = path.rpartition("/")
    if name.endswith(SUFFIX):
        return True
    return name == DESCRIPTION_FILE and folder.rpartition("/")[2] == ARCHIVE_FOLDER


def _of_run(run_id: str, path: str, tracking_uri: str) -> Location:
    """Return the location of a run's artifacts; ``run_id`` is MLflow's or radt's."""
    found_id, kept_at = _artifact_uri(run_id, tracking_uri)
    uri = direct_uri(kept_at)
    scheme = urlsplit(uri).scheme
    location: Location
    if scheme in ("", "file"):
        location = LocalFolder(Path(unquote(urlsplit(uri).path) if scheme else uri))
    elif scheme == "s3":
        location = S3Folder.of(uri)
    else:
        location = MlflowLocation(tracking_uri, found_id, "")
    return location.below(path) if path else location


def _artifact_uri(run_id: str, tracking_uri: str) -> tuple[str, str]:
    set_client_defaults()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    from radt.delivery.mlflow.limits import pages

    with _mlflow(f"runs:/{run_id}"):
        client = MlflowClient(tracking_uri)
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            quoted = run_id.replace("'", "")
            matches = (
                run
                for page in pages(client.search_experiments)
                if (ids := [experiment.experiment_id for experiment in page])
                for run in client.search_runs(ids, f"tags.`{RUN_ID}` = '{quoted}'")
            )
            first = next(matches, None)
            if first is None:
                raise FileMissingError(
                    f"MLflow at {masked(tracking_uri)} does not have run {run_id}", HINT
                ) from error
            run = first
        return str(run.info.run_id), str(run.info.artifact_uri)


@contextmanager
def _mlflow(where: str) -> Iterator[None]:
    """Turn MLflow's exceptions into `ArchiveError`."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        reason = masked((str(error).strip() or type(error).__name__).splitlines()[0][:500])
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 404 or getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            raise FileMissingError(f"{where} does not exist: {reason}", HINT) from error
        raise ArchiveError(
            f"MLflow failed on {where}: {reason}",
            "Check MLflow's address (RADT_TRACKING_URI) and that the server is running",
        ) from error


def _host_of(uri: str) -> str:
    """Return host and port of a URI, without user and password."""
    return urlsplit(uri).netloc.rpartition("@")[2]


def _refuse(error: OSError) -> None:
    """Raise an error of `os.walk`, unless the folder does not exist."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def _files(where: str) -> Iterator[None]:
    """Turn exceptions of the file system into `ArchiveError`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileMissingError(f"{where} does not exist", HINT) from error
    except OSError as error:
        raise ArchiveError(
            f"{where} cannot be read or copied: {error.strerror or error}",
            "Check its permissions and the free space in the temporary folder (TMPDIR)",
        ) from error
