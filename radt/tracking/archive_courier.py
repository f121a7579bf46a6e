"""Brings the archives of runs to their artifacts, as the archiver leaves them in the spool."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

from radt.archive.manifest import ARCHIVE_FOLDER, MANIFEST_FILE
from radt.archive.places import FileMissingError, place_of
from radt.archive.spool import ArchiveBusyError
from radt.archive.standing import standing_of
from radt.errors import ArchiveError
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.tracking.archiving import MAX_RUNS, Archiving, UnarchivableError, archive_spool
from radt.tracking.mlflow_target import MlflowTarget
from radt.tracking.trouble import DeliveryError, Trouble

log = logging.getLogger(__name__)

#: What the store remembers of a delivered archive, among the names of artifacts: no path of these.
_DELIVERED = f"/{ARCHIVE_FOLDER}/{MANIFEST_FILE}"


class ArchiveCourier:
    """A part of `radt.tracking.courier.Courier`, and as thread-safe.

    Args:
        before_request: Called before each request; may wait until others are done.
    """

    def __init__(
        self,
        target: MlflowTarget,
        reader: StoreReader,
        archiving: Archiving,
        before_request: Callable[[], object],
        writer: StoreWriter,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._archiving = archiving
        self._before_request = before_request
        #: What was said last of a running run, so that an outage is not said at every turn.
        self._said: dict[str, str] = {}

    def keep_up(self, run: RunRecord, mlflow_id: str) -> None:
        """Bring what has been archived of a running run, and have more archived when it is due.

        Raises:
            DeliveryError: MLflow is away, or has the run no longer. Nothing else of a run that
                goes on waits for its archive: other trouble is logged, and tried again.
        """
        if not run.spool:
            return
        try:
            self._restore(run, mlflow_id)
            self._archiving.keep_up(run)
            self._send(run, mlflow_id)
        except ArchiveBusyError:
            pass  # being written: it comes with the next turn
        except (ArchiveError, OSError) as error:
            self._say(run, str(error))
        except DeliveryError as error:
            if error.trouble in (Trouble.UNREACHABLE, Trouble.GONE):
                raise
            self._say(run, error.message)
        else:
            self._said.pop(run.run_id, None)

    def _say(self, run: RunRecord, trouble: str) -> None:
        if self._said.get(run.run_id) != trouble:
            self._said[run.run_id] = trouble
            log.warning("the archive of run %s waits: %s", run.run_id, trouble)

    def complete(self, run: RunRecord, mlflow_id: str) -> str:
        """Have the rest of an ended run archived, and bring it; why there will be none, if so.

        Raises:
            DeliveryError: It did not work, and is to be tried again.
        """
        if not run.spool:
            return ""
        self._said.pop(run.run_id, None)
        try:
            self._restore(run, mlflow_id)
            self._archiving.complete(run, partial(self._incomplete, run))
            self._send(run, mlflow_id)
        except UnarchivableError as error:
            return f"not archived: {error.message}"
        except ArchiveError as error:
            raise DeliveryError(Trouble.BUSY, f"archive: {error.message}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(Trouble.BUSY, f"archive: {reason}") from error
        except DeliveryError as error:
            if error.trouble is not Trouble.REFUSED:
                raise
            log.warning("the archive of run %s is refused: %s", run.run_id, error.message)
            return f"archive refused: {error.message}"
        return ""

    def _incomplete(self, run: RunRecord) -> list[str]:
        """A run that has ended, and others, whose archives are not complete; none if its own is."""
        if self._is_complete(run):
            return []
        others = (
            one.run_id
            for one in self._reader.runs_to_deliver(run.tracking_uri)
            if one.run_id != run.run_id
            and one.status.ended
            and one.spool
            # One that is to be restored has its own turn.
            and not self._is_lost(one)
            and not self._is_complete(one)
        )
        return [run.run_id, *islice(others, MAX_RUNS - 1)]

    def _is_complete(self, run: RunRecord) -> bool:
        return archive_spool(run).is_complete(
            run.run_id, standing_of(self._reader, run.run_id).revision
        )

    def _is_lost(self, run: RunRecord) -> bool:
        """Whether an archive was delivered of which the spool knows nothing."""
        if archive_spool(run).manifest_file.exists():
            return False
        return _DELIVERED in self._reader.delivered_artifacts(run.run_id)

    def _restore(self, run: RunRecord, mlflow_id: str) -> None:
        """Go on from what MLflow has, where the spool was lost or had been cleaned already.

        Written from the start, parts would take the place of others that a manifest lists, and lie
        beside those that are no longer listed.

        Raises:
            ArchiveError: It cannot be fetched now.
            ArchiveBusyError: The archive is being written.
            OSError: The spool cannot be written.
        """
        if not self._is_lost(run):
            return
        self._before_request()
        with tempfile.TemporaryDirectory(prefix="radt-archive-") as folder:
            file = Path(folder) / MANIFEST_FILE
            try:
                place = place_of(f"runs:/{mlflow_id}/{ARCHIVE_FOLDER}", run.tracking_uri)
                place.fetch(MANIFEST_FILE, file)
            except FileMissingError as error:
                log.warning("run %s is archived from the start: %s", run.run_id, error.message)
                return
            spool = archive_spool(run)
            with spool.locked():
                spool.restore(file.read_bytes())

    def _send(self, run: RunRecord, mlflow_id: str) -> None:
        """Bring the files that wait, the manifest behind what it lists.

        Raises:
            DeliveryError: MLflow failed.
            ArchiveBusyError: The archive is being written.
            OSError: A file cannot be read, or local artifacts cannot be written.
        """
        spool = archive_spool(run)
        if not spool.manifest_file.exists():
            return
        with spool.locked():
            for one in spool.waiting():
                self._before_request()
                self._target.log_artifact(mlflow_id, one.file, one.path.rpartition("/")[0])
                if one.file == spool.manifest_file:
                    self._writer.mark_artifacts(run.run_id, [_DELIVERED])
                spool.delivered(one)
