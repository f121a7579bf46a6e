"""Give scripts MLflow's functions with the run's MLflow run active, or stand-ins without a run."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from radt.errors import RadtError
from radt.home import MLFLOW_PENDING_VARIABLE
from radt.journal.format import EventKind, RecordKind
from radt.journal.writer import Number
from radt.masking import unmasked
from radt.model import RunStatus
from radt.run.notices import warn_once
from radt.run.target import Part, Target

if TYPE_CHECKING:
    from radt.store.records import RunRecord


class NullJournal:
    """Takes what a `radt.journal.writer.JournalWriter` takes.

    Args:
        complain: Called with each value that is lost by it.
    """

    def __init__(self, complain: Callable[[], None] | None = None) -> None:
        self._complain = complain

    def scalar(self, name: str, value: Number, step: object = None) -> None:  # noqa: ARG002
        self._lose()

    def sample(self, name: str, value: float, step: int | None = None) -> None:  # noqa: ARG002
        self._lose()

    def begin(self, kind: RecordKind, name: str, step: int | None = None) -> int:  # noqa: ARG002
        self._lose()
        return 0

    def end(self, kind: RecordKind, name: str, step: int | None, token: int) -> None:
        pass

    def say(self, kind: EventKind, **fields: Any) -> None:  # noqa: ARG002
        self._lose()

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _lose(self) -> None:
        if self._complain is not None:
            self._complain()


class Nothing:
    """Anything that is done with it gives itself or nothing: calls, attributes, ``with``, loops.

    As a decorator without arguments it leaves the function as it is.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<nothing: radt is not recording>"


NOTHING = Nothing()


RUN_VARIABLE = "MLFLOW_RUN_ID"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_ID"
#: The same of a run that a runner started. MLflow removes the other as soon as it has used it.
KEPT_RUN_VARIABLE = "RADT_MLFLOW_RUN_ID"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
#: How often the collector is told that somebody waits: it may be about to be restarted.
_HURRY_EVERY_S = 5.0
#: How long to wait for MLflow's id of a run that has just begun: the process that talks to MLflow
#: has to start, and a new database needs its tables.
ID_TIMEOUT_S = 60.0
_POLL_S = 0.05

#: MLflow's ids by ours.
_known_ids: dict[str, str] = {}


class MlflowPassthrough:
    """MLflow as seen from one run; loads it with the first use.

    Args:
        wait_for_collector: Returns when it is known whether a collector has the run: before, its
            store need not exist.
    """

    def __init__(
        self, target: Target, wait_for_collector: Callable[[], object] = lambda: None
    ) -> None:
        self._target = target
        self._wait_for_collector = wait_for_collector
        self._bound: ModuleType | None = None
        self._failed = False
        self._why = "it has no MLflow run"
        self._uri = ""
        self._outer: dict[str, str | None] = {}
        #: The id that the runner gave to people, in the Run column.
        self.shown_id: str | None = None
        if target.part is Part.MEMBER:
            self.shown_id = os.environ.get(KEPT_RUN_VARIABLE)
            given = self.shown_id or os.environ.get(RUN_VARIABLE)
            if given and not self.is_pending:
                _known_ids.setdefault(target.run_id, given)

    def attribute(self, name: str) -> Any:
        """``mlflow.NAME``; something that does nothing if MLflow does not know the run.

        Raises:
            AttributeError: MLflow has nothing of that name.
        """
        if self._target.part is Part.NONE:
            return NOTHING
        mlflow = self._bind()
        return NOTHING if mlflow is None else getattr(mlflow, name)

    def prepare(self) -> None:
        """Have the script's own calls of mlflow reach the run, whether it is imported yet or not.

        What needs MLflow's id of the run waits for it in the script's first call.
        """
        uri = self._target.home.tracking_uri(warn=warn_once)
        if uri:
            self._set(URI_VARIABLE, uri)
        mlflow = sys.modules.get("mlflow")
        if mlflow is None:
            return  # it calls `radt.mlflow_plugin` when it is imported
        from radt.run.mlflow_calls import install

        if uri:
            mlflow.set_tracking_uri(uri)
        if not install() and uri:
            self._bind()

    def release(self, status: RunStatus) -> None:
        """The run has ended: what is logged to MLflow from now on belongs elsewhere."""
        if self._target.part is not Part.OWNER:
            return
        for name, value in self._outer.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._outer.clear()
        mlflow = sys.modules.get("mlflow")
        if mlflow is not None and self.run_id is not None:
            active = mlflow.active_run()
            if active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status.mlflow)
        self._bound = None

    @property
    def is_pending(self) -> bool:
        """Whether the runner started this process before MLflow had the run."""
        return self._target.part is Part.MEMBER and MLFLOW_PENDING_VARIABLE in os.environ

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, as far as it is known here."""
        return _known_ids.get(self._target.run_id)

    def find_run_id(self) -> str | None:
        """Return MLflow's id of the run, once MLflow has the run; None if it never will."""
        if self.run_id is None and not self._failed:
            self._wait_for_collector()
            record = wait_for_mlflow(self._target)
            if record is None or not record.mlflow_run_id:
                self._failed = True
                if record is not None:
                    self._why = "it is recorded without MLflow (tracking-uri is none)"
            else:
                _known_ids[self._target.run_id] = str(record.mlflow_run_id)
                self._uri = self._address(record)
        return self.run_id

    def _bind(self) -> ModuleType | None:
        import mlflow

        if self._bound is None:
            if self.find_run_id() is None:
                warn_once(f"functions of mlflow do nothing in this run: {self._why}")
                return None
            if self._uri:
                self._set(URI_VARIABLE, self._uri)
                mlflow.set_tracking_uri(self._uri)
            self._bound = mlflow
        active = mlflow.active_run()
        if active is None or active.info.run_id != self.run_id:
            # Where MLflow's functions look for a run to join; they remove it when they have.
            self._set(RUN_VARIABLE, str(self.run_id))
        return mlflow

    def _set(self, name: str, value: str) -> None:
        self._outer.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def _address(self, record: RunRecord) -> str:
        """Return the run's tracking URI, with the password that the store does not have."""
        given = (os.environ.get(URI_VARIABLE, ""), self._target.home.tracking_uri(warn=warn_once))
        return unmasked(record.tracking_uri, given)


def wait_for_mlflow(target: Target) -> RunRecord | None:
    """Return the run's row once MLflow has the run, or if it is recorded without MLflow.

    None, with a warning, if MLflow does not answer in time.
    """
    from radt.collector.client import hurry_uploads
    from radt.store.reader import StoreReader

    deadline = time.monotonic() + ID_TIMEOUT_S
    reason = f"it did not answer within {ID_TIMEOUT_S:.0f} s"
    hurried_s = -math.inf
    while time.monotonic() < deadline:
        try:
            with StoreReader(target.home.store_path) as reader:
                while time.monotonic() < deadline:
                    record = reader.run(target.run_id)
                    if record.mlflow_run_id:
                        return record
                    if not record.tracking_uri:
                        return record
                    if time.monotonic() >= hurried_s + _HURRY_EVERY_S:
                        hurried_s = time.monotonic()
                        hurry_uploads(target.home.store_path)
                    time.sleep(_POLL_S)
        except RadtError as error:
            reason = str(error)  # the row may be about to be written
            if target.part is Part.OWNER:
                break
            time.sleep(_POLL_S)
    warn_once(f"MLflow does not have this run: {reason}")
    return None
