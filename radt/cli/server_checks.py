"""The checks of ``radt doctor`` for the servers that this machine uploads to."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sqlalchemy import text as sql

from radt.cli.checks import Check, CheckState
from radt.delivery.mlflow.variables import DESTINATION, FOR_COMMANDS, ROOT, set_client_defaults
from radt.delivery.s3 import S3Folder
from radt.errors import RadtError
from radt.home import Home
from radt.masking import masked
from radt.paths import is_database
from radt.store.admin import transaction
from radt.store.backend import Dialect, StoreAddress, backend_of
from radt.store.migrations import check_not_newer, current_version, latest_version


def servers(home: Home) -> Iterator[Check]:
    """Check each server: reachable, credentials, version, writable."""
    for subject, check in (("database", _database), ("MLflow", _mlflow), ("S3", _s3)):
        try:
            result = check(home)
        except RadtError as error:
            result = Check.failed(subject, error)
        if result is not None:
            yield result


def _database(home: Home) -> Check:
    uri = home.store_uri(tracking_uri=home.tracking_uri())
    if not uri:
        return Check("database", CheckState.ABSENT, "not set; samples stay in the data folder")
    address = StoreAddress.of(uri)
    backend, is_writable = backend_of(address), True
    with transaction(backend, backend.reader_engine()) as connection:
        version = current_version(backend, connection)
        if version and backend.dialect is Dialect.POSTGRES:
            query = sql("SELECT has_table_privilege('radt.run', 'INSERT')")
            is_writable = bool(connection.scalar(query))
    check_not_newer(backend, version)
    if version == 0:
        return Check("database", CheckState.GOOD, f"{address}, empty; the first run sets it up")
    if version < latest_version():
        text = f"{address} has schema version {version}; this radt needs {latest_version()}"
        return Check("database", CheckState.WRONG, text, "radt db upgrade")
    if not is_writable:
        text = f"{address}, read-only: runs recorded here cannot be uploaded to it"
        return Check("database", CheckState.LOW, text, "To upload, use a role that may write")
    return Check("database", CheckState.GOOD, str(address))


def _mlflow(home: Home) -> Check:
    uri = home.tracking_uri()
    if not uri or uri == home.default_tracking_uri:
        return Check("MLflow", CheckState.ABSENT, "not set; runs stay in the data folder")
    set_client_defaults(FOR_COMMANDS)
    from radt.delivery.mlflow.target import DeliveryError, MlflowTarget

    try:
        version = MlflowTarget(uri).probe()
    except DeliveryError as error:
        return Check(
            "MLflow", CheckState.WRONG, f"{masked(uri)}: {error.message}", error.remedy or ""
        )
    return Check("MLflow", CheckState.GOOD, f"{masked(uri)}{version and f', MLflow {version}'}")


def _s3(home: Home) -> Check | None:
    tracking_uri = home.tracking_uri()
    if not tracking_uri or tracking_uri == home.default_tracking_uri:
        return None
    name, otherwise = DESTINATION, "go through MLflow's server"
    if is_database(tracking_uri):
        name, otherwise = ROOT, "stay in the data folder"
    uri = os.environ.get(name, "")
    if not uri.startswith("s3://"):
        return Check("S3", CheckState.ABSENT, f"{name} not set; files {otherwise}")
    folder = S3Folder.of(uri)
    folder.check_writable()
    return Check("S3", CheckState.GOOD, str(folder))
