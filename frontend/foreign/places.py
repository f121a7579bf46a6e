"""Which MLflow's runs are shown beside a store."""

from __future__ import annotations

from radt.frontend.foreign.beside import Beside
from radt.frontend.foreign.connection import (
    MlflowConnection,
    PostgresConnection,
    SqliteConnection,
)
from radt.frontend.foreign.database import DatabaseBeside
from radt.store.address import StoreAddress

_FILE = "mlflow.db"


def beside_of(store: StoreAddress, tracking_uri: str = "") -> Beside:
    """Those of the database that was named, else of the one that belongs to the store.

    Whether there is any is found out when it is asked.

    Args:
        store: The store that is shown.
        tracking_uri: Of a database; empty if none was named.

    Raises:
        UsageError: The URI is of something else.
    """
    connection: MlflowConnection
    if tracking_uri:
        connection = MlflowConnection.of(tracking_uri)
    elif store.path is not None:
        connection = SqliteConnection(store.path.with_name(_FILE))
    else:
        connection = PostgresConnection(store)
    return DatabaseBeside(connection)
