"""Keeps a store and MLflow's runs beside it open as one."""

from __future__ import annotations

from radt.errors import NoStoreError, RadtError
from radt.frontend.foreign.beside import Beside
from radt.frontend.foreign.joint import JointReader
from radt.frontend.keepers import Keeper, NothingRecordedError
from radt.store.reader import StoreReader


class JointKeeper(Keeper):
    """A store that may not be there yet, and MLflow's runs. Thread-safe.

    Where one of both cannot be read, the other is shown, and there is a `problem`.
    """

    def __init__(self, store: Keeper, beside: Beside) -> None:
        super().__init__(store.address)
        self._store = store
        self._beside = beside
        self._joint: JointReader | None = None
        self._shown = -1
        self.ask_interval_s = store.ask_interval_s
        self.outlives_outages = store.outlives_outages or beside.is_away_at_times

    @property
    def problem(self) -> RadtError | None:
        joint = self._joint
        return None if joint is None else joint.problem

    def reader(self) -> StoreReader:
        """
        Raises:
            NothingRecordedError: There is neither a store nor anything of MLflow.
            StoreError: The store cannot be opened.
        """
        store: StoreReader | None
        try:
            store = self._store.reader()
        except (NothingRecordedError, NoStoreError):
            if not self._beside.is_there:
                raise
            store = None
        with self._lock:
            if self._joint is None or self._joint.store is not store:
                before = None if self._joint is None else self._joint.before
                self._joint = JointReader(self.address, store, self._beside, before)
                self.opened += 1
            return self._joint

    def lost(self, reader: StoreReader) -> None:
        with self._lock:
            joint = self._joint
        if joint is reader and joint is not None and joint.store is not None:
            self._store.lost(joint.store)

    def _close(self) -> None:
        self._store.close()
        self._beside.close()
        self._joint = None
        self.opened += 1
