"""Find archives, and import them into a store: bit for bit, without duplicating points."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from radt.delivery.archive import (
    ARCHIVE_FOLDER,
    DESCRIPTION_FILE,
    FileMissingError,
    parquet,
)
from radt.delivery.archive.locations import (
    HINT,
    Location,
    is_of_archive,
    location_of,
)
from radt.errors import ArchiveError
from radt.store import bundle
from radt.store.applying import OtherRunError, apply
from radt.store.copy import Batch, Position, RunRows, position_of
from radt.store.pruning import Keep, pruned_run
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

_REMEDY = "Download it again from the run's artifacts"

#: Exported files may have any name, such as lr-0.1.radt.
_RUN_ID = re.compile(r"[0-9a-f]{32}")

#: Returns the store's position of a run, by the run's id.
Have = Callable[[str], Position]


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one run.

    Attributes:
        location: Its folder.
        run_id: The run; empty if only the content of its file tells.
        files: Names of its bundles, in order.
        size_bytes: Size of its files.
        version: Changes whenever the archive grows.
        manifest: The manifest of an archive from before bundles.
    """

    location: Location
    run_id: str
    files: tuple[str, ...]
    size_bytes: int
    version: str
    manifest: parquet.ArchiveManifest | None = None

    def __str__(self) -> str:
        return f"{self.location}/{self.files[0]}" if len(self.files) == 1 else str(self.location)

    @contextmanager
    def batches(self, have: Have) -> Iterator[Iterator[Batch]]:
        """Yield the data that a store lacks, after checking all files that contain it.

        Files are copied to this machine first, so that they cannot change while in use.

        Raises:
            ArchiveError: A file is missing or damaged; the message names it.
        """
        with _temporary_folder() as folder:
            if self.manifest is not None:
                points = have(self.run_id).points
                yield parquet.batches(
                    self.manifest,
                    points,
                    lambda path: self._fetched(path, folder),
                    str(self.location),
                )
            else:
                with closing(self._from_bundles(have, folder)) as batches:
                    yield batches

    def _from_bundles(self, have: Have, folder: Path) -> Generator[Batch]:
        """Read backwards to the first bundle that the store needs: there may be thousands."""
        needed: list[Path] = []
        newest: RunRows | None = None
        following = ""
        for name in reversed(self.files):
            where = f"{self.location}/{name}"
            if following and _number(name) + 1 != _number(following):
                break
            file, following = self._fetched(name, folder), name
            needed.append(file)
            with _opened(file, where) as opened:
                run_id, newest = opened.rows.run.run_id, newest or opened.rows
                if self.run_id not in ("", run_id):
                    raise ArchiveError(
                        f"expected run {self.run_id} in {where}, got run {run_id}", _REMEDY
                    )
                if have(run_id).covers(opened.since):
                    return self._each(needed[::-1], newest)
        run_id, number = bundle.number_of(following) or ("", 1)
        if number > 1:
            raise _incomplete(f"{self.location}/{bundle.name_of(run_id, number - 1)}")
        raise _incomplete(f"what came before {self.location}/{following}")

    def _each(self, files: Sequence[Path], newest: RunRows) -> Generator[Batch]:
        """Yield bundles as one copy, which ends with the last of them.

        Between two bundles, a store must neither list the run nor treat it as complete.
        """
        for file in files:
            with _opened(file, f"{self.location}/{file.name}") as opened:
                for batch in opened.batches():
                    yield replace(
                        batch,
                        rows=newest,
                        is_first=batch.is_first and file == files[0],
                        is_last=batch.is_last and file == files[-1],
                    )

    def _fetched(self, path: str, folder: Path) -> Path:
        """Return a copy of a file in a folder of this machine."""
        target = folder / path.replace("/", "-")
        where = f"{self.location}/{path}"
        try:
            with _room_for(f"{where} cannot be copied to this machine"):
                self.location.fetch(path, target)
        except FileMissingError as error:
            raise _incomplete(where) from error
        return target


@contextmanager
def _room_for(failure: str) -> Iterator[None]:
    """Turn errors of this machine's disk into an `ArchiveError` that begins with ``failure``."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"{failure}: {error.strerror or error}",
            "Free some disk space, or set TMPDIR to another folder",
        ) from error


@contextmanager
def _opened(file: Path, where: str) -> Iterator[bundle.Bundle]:
    """Open a local copy of a bundle."""
    with _room_for(f"{where} cannot be opened"), bundle.open(file, where, is_copy=True) as opened:
        yield opened


def _incomplete(what: str) -> ArchiveError:
    return ArchiveError(f"the archive is incomplete: {what} is missing", _REMEDY)


def _number(name: str) -> int:
    named = bundle.number_of(name)
    return 0 if named is None else named[1]


# -- finding --------------------------------------------------------------------------------------


def find_archives(where: str | Path, tracking_uri: str = "") -> list[Archive]:
    """Return the archives in a folder, in its folder ``radt``, or else all archives below it.

    Args:
        where: Any location that `location_of` accepts, or a single bundle.
        tracking_uri: MLflow, which may have the run.

    Raises:
        FileMissingError: There is no archive.
        ArchiveError: The location cannot be read, or an archive of an earlier radt is damaged.
    """
    folder, name = _split(where)
    if name.endswith(bundle.SUFFIX) and not Path(where).is_dir():
        location = location_of(folder, tracking_uri)
        sizes = location.sizes()
        if name in sizes:
            return [_single(location, name, sizes[name])]
        raise FileMissingError(f"{where} does not exist", HINT)
    location = location_of(where, tracking_uri)
    archives = _in_folder(location) or _in_folder(location.below(ARCHIVE_FOLDER))
    if not archives:
        folders = dict.fromkeys(
            path.rpartition("/")[0] for path in location.paths() if is_of_archive(path)
        )
        archives = [found for path in folders for found in _in_folder(location.below(path))]
    if not archives:
        raise FileMissingError(f"{location} does not contain an archive", HINT)
    return archives


def _split(where: str | Path) -> tuple[str | Path, str]:
    """Split a path into the folder and the name of the file."""
    if isinstance(where, Path):
        return where.parent, where.name
    folder, slash, name = where.rpartition("/")
    return folder or Path(slash or "."), name


def find_archive(where: str | Path, tracking_uri: str = "") -> Archive:
    """Return the only archive at a location.

    Raises:
        FileMissingError: There is no archive.
        ArchiveError: There are several, or see `find_archives`.
    """
    archives = find_archives(where, tracking_uri)
    if len(archives) > 1:
        raise ArchiveError(
            f"expected one archive in {where}, found {len(archives):,}",
            f"Name one of them, such as {archives[0]}",
        )
    return archives[0]


def _in_folder(location: Location) -> list[Archive]:
    sizes = location.sizes()
    is_run_folder = str(location).rpartition("/")[2] == ARCHIVE_FOLDER
    bundles: dict[str, dict[int, str]] = {}
    archives = []
    for name in sorted(sizes):
        named = bundle.number_of(name)
        if named is not None and (is_run_folder or _RUN_ID.fullmatch(named[0])):
            bundles.setdefault(named[0], {})[named[1]] = name
        elif name.endswith(bundle.SUFFIX):
            archives.append(_single(location, name, sizes[name]))
    for run_id, names in bundles.items():
        files = tuple(names[number] for number in sorted(names))
        size_bytes = sum(sizes[name] for name in files)
        archives.append(Archive(location, run_id, files, size_bytes, str(max(names))))
    if not archives and DESCRIPTION_FILE in sizes:
        archives += _of_earlier(location)
    return archives


def _single(location: Location, name: str, size_bytes: int) -> Archive:
    return Archive(location, "", (name,), size_bytes, "")


def _of_earlier(location: Location) -> Iterator[Archive]:
    """Yield the archive of an earlier radt, if ``run.json`` is its manifest."""
    where = f"{location}/{DESCRIPTION_FILE}"
    with _temporary_folder() as folder:
        location.fetch(DESCRIPTION_FILE, folder / DESCRIPTION_FILE)
        manifest = parquet.ArchiveManifest.of((folder / DESCRIPTION_FILE).read_bytes(), where)
    if manifest is not None:
        run_id = manifest.rows.run.run_id
        yield Archive(location, run_id, (), manifest.size_bytes, str(manifest.written_ns), manifest)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with _room_for("cannot create a temporary folder"):
        folder = tempfile.TemporaryDirectory(prefix="radt-archive-")
    with folder as name:
        yield Path(name)


# -- importing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import.

    ``points``: number of points added; ``is_new``: the run was not in the store before.
    """

    run: RunRecord
    points: int
    total_points: int
    is_new: bool

    @property
    def is_complete(self) -> bool:
        """Return whether the run has ended; otherwise more of it may follow."""
        return self.run.status.ended


def import_archive(archive: Archive, writer: StoreWriter) -> Imported:
    """Add the data of a run that a store lacks.

    All files are checked before anything is written. The run is not uploaded to MLflow from this
    store.

    Raises:
        ArchiveError: The archive is damaged, or the store has a different run with this id.
        StoreError: The store cannot be written.
    """
    with StoreReader(writer.address) as reader:

        def have(run_id: str) -> Position:
            pruned = pruned_run(reader, run_id)
            if pruned is not None and pruned.kept is Keep.SUMMARIES:
                return Position()  # a thinned run lacks points from the start on
            return position_of(reader, run_id)

        points, is_new = 0, False
        with archive.batches(have) as batches:
            try:
                for batch in batches:
                    applied = apply(writer, batch)
                    points += applied.points
                    is_new = is_new or applied.is_new
            except OtherRunError as error:
                raise ArchiveError(f"{archive}: {error.message}", error.remedy) from error
    rows = batch.rows
    return Imported(rows.run, points, sum(rows.points.values()), is_new)


@contextmanager
def as_store(where: str | Path, tracking_uri: str = "") -> Iterator[StoreReader]:
    """Yield a temporary store with the run of an archive.

    Raises:
        FileMissingError: There is no archive.
        ArchiveError: The archive cannot be read, or is damaged.
    """
    archive = find_archive(where, tracking_uri)
    with _temporary_folder() as folder:
        store = folder / "radt.db"
        with StoreWriter(store) as writer:
            import_archive(archive, writer)
        with StoreReader(store) as reader:
            yield reader
