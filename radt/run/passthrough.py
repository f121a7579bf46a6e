"""Offer MLflow's functions with the run's MLflow run active, or stand-ins without a run."""

from __future__ import annotations

import dis
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from radt.errors import RadtError
from radt.home import MLFLOW_PENDING_VARIABLE
from radt.masking import unmasked
from radt.model import RunStatus
from radt.run.notices import warn_once
from radt.run.off import NOTHING
from radt.run.target import ProcessPart, RunTarget

if TYPE_CHECKING:
    from radt.store.records import RunRecord

RUN_VARIABLE = "MLFLOW_RUN_ID"
#: The MLflow id of a run started by a runner. MLflow deletes `RUN_VARIABLE` once it has used it.
KEPT_RUN_VARIABLE = "RADT_MLFLOW_RUN_ID"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
#: Interval at which the collector is asked again to upload now: it may have been restarted.
_FLUSH_EVERY_S = 5.0
#: Timeout for the MLflow id of a run that has just begun: the uploader has to start, and a new
#: database needs its tables.
ID_TIMEOUT_S = 60.0
_POLL_S = 0.05
#: Functions of mlflow that log to the run that is active in their thread.
_LOGGING = ("log_", "set_tag", "delete_tag", "get_artifact_uri", "register_model")

_resumed = threading.local()


def is_mlflows(name: str) -> bool:
    """Return True if MLflow has a function or module of this name, without importing it."""
    return name in _names() or name in vars(sys.modules.get("mlflow", sys))


@cache
def _names() -> frozenset[str]:
    spec = find_spec("mlflow")
    code = cast(InspectLoader, spec.loader).get_code("mlflow") if spec is not None else None
    steps = dis.get_instructions(code) if code is not None else ()
    return frozenset(step.argval for step in steps if step.opname == "STORE_NAME")


def resumed_id() -> str | None:
    """Return the id of the MLflow run that this thread resumes, whatever it asks to open."""
    return getattr(_resumed, "mlflow_id", None)


class MlflowPassthrough:
    """MLflow as seen from one run. Imports mlflow on first use.

    Attributes:
        run_id: MLflow's id of the run, as far as it is known here.
        shown_id: The id that the runner shows in the Run column.
        is_taken: True if the script has opened the run through MLflow, so that the next MLflow run
            is another one.

    Args:
        wait_for_collector: Returns when it is known whether a collector has the run. The store may
            not exist before.
    """

    def __init__(
        self, target: RunTarget, wait_for_collector: Callable[[], object] = lambda: None
    ) -> None:
        self._target = target
        self._wait_for_collector = wait_for_collector
        self._failed = False
        self._why = "it has no MLflow run"
        self.run_id: str | None = None
        self.shown_id: str | None = None
        self.is_taken = False
        if target.part is ProcessPart.MEMBER:
            self.shown_id = os.environ.get(KEPT_RUN_VARIABLE)
            if not self.is_pending:
                self.run_id = self.shown_id or os.environ.get(RUN_VARIABLE)

    def attribute(self, name: str) -> Any:
        """Return ``mlflow.NAME``, or an inert stand-in if MLflow does not know the run.

        Raises:
            AttributeError: MLflow has no such attribute.
        """
        if self._target.part is ProcessPart.NONE:
            return NOTHING
        import mlflow

        if self.find_run_id() is None:
            warn_once(f"functions of mlflow do nothing in this run: {self._why}")
            return NOTHING
        if name.startswith(_LOGGING) and mlflow.active_run() is None:
            _resumed.mlflow_id = self.run_id
            try:
                mlflow.start_run()
            finally:
                _resumed.mlflow_id = None
        return getattr(mlflow, name)

    def prepare(self) -> dict[str, str]:
        """Point the script's own calls of mlflow at the run's server.

        The first call that needs MLflow's id of the run waits for it.

        Returns:
            Variables that do the same for an mlflow that is imported later or in other processes.
        """
        uri = self._target.home.tracking_uri(warn=warn_once)
        mlflow = sys.modules.get("mlflow")
        if uri and mlflow is not None:
            mlflow.set_tracking_uri(uri)
        return {URI_VARIABLE: uri} if uri else {}

    def release(self, status: RunStatus) -> None:
        """Close the run in mlflow, so that later calls of mlflow do not log to it."""
        mlflow = sys.modules.get("mlflow")
        if mlflow is not None and self.run_id is not None:
            active = mlflow.active_run()
            if active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status.mlflow)

    @property
    def is_pending(self) -> bool:
        """True if the runner started this process before MLflow had the run."""
        return self._target.part is ProcessPart.MEMBER and MLFLOW_PENDING_VARIABLE in os.environ

    def find_run_id(self) -> str | None:
        """Wait until MLflow has the run and return its id; None if MLflow will not have it."""
        if self.run_id is None and not self._failed:
            self._wait_for_collector()
            record = wait_for_mlflow(self._target)
            if record is None or not record.mlflow_run_id:
                self._failed = True
                if record is not None:
                    self._why = "it is recorded without MLflow (tracking-uri is none)"
            else:
                self.run_id = str(record.mlflow_run_id)
                # The store lacks the password.
                known = self._target.home.tracking_uri(warn=warn_once)
                uri = unmasked(record.tracking_uri, (os.environ.get(URI_VARIABLE, ""), known))
                if uri and "mlflow" in sys.modules:
                    sys.modules["mlflow"].set_tracking_uri(uri)
        return self.run_id


def wait_for_mlflow(target: RunTarget) -> RunRecord | None:
    """Wait until MLflow has the run, or is known not to record it. Return the run's row.

    Returns None, with a warning, if MLflow does not answer in time.
    """
    from radt.collector.client import flush_uploads
    from radt.store.reader import StoreReader

    deadline = time.monotonic() + ID_TIMEOUT_S
    reason = f"it did not answer within {ID_TIMEOUT_S:.0f} s"
    flushed_s = -math.inf
    while time.monotonic() < deadline:
        try:
            with StoreReader(target.home.store_path) as reader:
                record = reader.run(target.run_id)
            if record.mlflow_run_id or not record.tracking_uri:
                return record
            if time.monotonic() >= flushed_s + _FLUSH_EVERY_S:
                flushed_s = time.monotonic()
                flush_uploads(target.home.store_path)
        except RadtError as error:
            reason = str(error)  # the row may not be written yet
            if target.part is ProcessPart.OWNER:
                break
        time.sleep(_POLL_S)
    warn_once(f"MLflow does not have this run: {reason}")
    return None
