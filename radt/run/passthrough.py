"""Give scripts MLflow's functions with the run's MLflow run active, or stand-ins without a run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from radt.errors import RadtError
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
URI_VARIABLE = "MLFLOW_TRACKING_URI"
#: How long to wait for MLflow's id of a run that has just begun: the process that talks to MLflow
#: has to start, and a new database needs its tables.
ID_TIMEOUT_S = 60.0
_POLL_S = 0.05

#: MLflow's ids by ours. MLflow removes the variable that held one as soon as it has used it.
_known_ids: dict[str, str] = {}


class MlflowPassthrough:
    """MLflow as seen from one run; loads it with the first use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._bound: ModuleType | None = None
        self._failed = False
        self._outer: dict[str, str | None] = {}
        if target.part is Part.MEMBER and (given := os.environ.get(RUN_VARIABLE)):
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

    def bind_if_loaded(self) -> None:
        """For scripts that have imported mlflow and will call it themselves."""
        if self._target.part is Part.OWNER and "mlflow" in sys.modules:
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
        if self._bound is not None:
            active = self._bound.active_run()
            if active is not None and active.info.run_id == self.run_id:
                self._bound.end_run(status.mlflow)
        self._bound = None

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, as far as it is known here."""
        return _known_ids.get(self._target.run_id)

    def _bind(self) -> ModuleType | None:
        if self._bound is not None or self._failed:
            return self._bound
        import mlflow

        if self.run_id is None:
            record = self._registered()
            if record is None:
                self._failed = True
                return None
            _known_ids[self._target.run_id] = str(record.mlflow_run_id)
            uri = self._address(record)
            self._set(URI_VARIABLE, uri)
            mlflow.set_tracking_uri(uri)
        active = mlflow.active_run()
        if active is None or active.info.run_id != self.run_id:
            # Where MLflow's functions look for a run to join; they remove it when they have.
            self._set(RUN_VARIABLE, str(self.run_id))
        self._bound = mlflow
        return mlflow

    def _set(self, name: str, value: str) -> None:
        self._outer.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def _address(self, record: RunRecord) -> str:
        """Return the run's tracking URI, with the password that the store does not have."""
        given = (os.environ.get(URI_VARIABLE, ""), self._target.home.tracking_uri(warn=warn_once))
        return unmasked(record.tracking_uri, given)

    def _registered(self) -> RunRecord | None:
        """Return the run's row, once MLflow has the run."""
        from radt.store.reader import StoreReader

        deadline = time.monotonic() + ID_TIMEOUT_S
        reason = f"MLflow did not answer within {ID_TIMEOUT_S:.0f} s"
        while time.monotonic() < deadline:
            try:
                with StoreReader(self._target.home.store_path) as reader:
                    while time.monotonic() < deadline:
                        record = reader.run(self._target.run_id)
                        if record.mlflow_run_id:
                            return record
                        if not record.tracking_uri:
                            reason = "it is recorded without MLflow (tracking-uri is none)"
                            deadline = 0.0
                            break
                        time.sleep(_POLL_S)
            except RadtError as error:
                reason = str(error)  # the row may be about to be written
                if self._target.part is Part.OWNER:
                    break
                time.sleep(_POLL_S)
        warn_once(f"functions of mlflow do nothing in this run: {reason}")
        return None
