"""Brings the archives of runs to their artifacts, as the archiver leaves them in the spool."""

from __future__ import annotations

import logging
from collections.abc import Callable

from radt.archive.spool import ArchiveBusyError
from radt.errors import ArchiveError
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tracking.archiving import Archiving, UnarchivableError, archive_spool
from radt.tracking.mlflow_target import MlflowTarget
from radt.tracking.trouble import DeliveryError, Trouble

log = logging.getLogger(__name__)


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
    ) -> None:
        self._target = target
        self._reader = reader
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
        others = [one for one in self._reader.runs_to_deliver(run.tracking_uri) if one.status.ended]
        try:
            self._archiving.complete(run, others)
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
                spool.delivered(one)
