"""Sets up the servers of ``compose.yaml``: roles, database, schemas of radt and MLflow, bucket.

The service ``prepare`` runs ``python -m radt.compose.prepare`` before MLflow and the dashboard.
Everything may exist already, from an earlier start, an earlier version, or an interrupted start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from psycopg2 import OperationalError, connect, sql
from psycopg2.errors import DuplicateDatabase, DuplicateObject
from psycopg2.extensions import encrypt_password

from radt.errors import RadtError, StackError
from radt.store.backend import StoreAddress
from radt.store.writer import StoreWriter

#: MLflow (schema public) and radt (schema radt) share a database, so that views may join both.
DATABASE = "radt"
BUCKET = "radt"
SCHEMA = "radt"
_S3_WAIT_S = 60.0
_RETRY_S = 1.0


class Role(StrEnum):
    """Roles of the database, each with its own password."""

    #: Owns the database and radt's schema, and upgrades the schema.
    OWNER = "radt"
    #: MLflow's server; owns MLflow's tables.
    MLFLOW = "mlflow"
    #: Machines that record runs; writes the tables of radt's schema.
    WRITER = "radt_writer"
    #: The dashboard and notebooks; reads everything, writes nothing.
    READER = "radt_reader"


_PASSWORD_VARIABLES = {
    Role.OWNER: "STACK_OWNER_PASSWORD",
    Role.MLFLOW: "STACK_MLFLOW_PASSWORD",
    Role.WRITER: "STACK_WRITER_PASSWORD",
    Role.READER: "STACK_READER_PASSWORD",
}
_SERVER_VARIABLES = (
    *("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD"),
    *("MLFLOW_S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
)


def prepare(environ: Mapping[str, str]) -> None:
    """Set up Postgres and S3 as the variables specify.

    Raises:
        StackError: A variable is missing, or a server does not respond.
        StoreError: The schema cannot be upgraded.
    """
    needed = (*_SERVER_VARIABLES, *_PASSWORD_VARIABLES.values())
    if missing := [name for name in needed if not environ.get(name)]:
        raise StackError(
            f"not set: {', '.join(missing)}",
            "compose.yaml sets these variables; run it with: docker compose up",
        )
    _prepare_database(environ)
    _prepare_bucket(environ)


def _prepare_database(environ: Mapping[str, str]) -> None:
    passwords = {role: environ[name] for role, name in _PASSWORD_VARIABLES.items()}
    host, port = environ["PGHOST"], int(environ["PGPORT"])
    superuser = {
        "host": host,
        "port": port,
        "user": environ["PGUSER"],
        "password": environ["PGPASSWORD"],
    }
    server = _connected({**superuser, "dbname": "postgres"})
    try:
        _make_roles(server, passwords)
        _make_database(server)
    finally:
        server.close()
    database = _connected({**superuser, "dbname": DATABASE})
    try:
        _run(database, _RIGHTS_BEFORE)
        password = quote(passwords[Role.OWNER], safe="")
        owner = f"postgresql://{Role.OWNER}:{password}@{host}:{port}/{DATABASE}"
        StoreWriter(StoreAddress.of(owner), upgrade=True).close()
        _run(database, _RIGHTS)
    finally:
        database.close()
    _upgrade_mlflow({**environ, "PGUSER": Role.MLFLOW, "PGPASSWORD": passwords[Role.MLFLOW]})


def _upgrade_mlflow(environ: Mapping[str, str]) -> None:
    """Create or upgrade MLflow's tables: its server refuses tables of an earlier version."""
    command = ["-P", "-m", "mlflow", "db", "upgrade", "postgresql+psycopg2://"]
    done = subprocess.run(
        [sys.executable, *command], env={**environ, "PGDATABASE": DATABASE}, check=False
    )
    if done.returncode:
        raise StackError(
            "MLflow's tables cannot be upgraded, for the reason above",
            "To go back, restore the backup with the earlier version",
        )


def _prepare_bucket(environ: Mapping[str, str]) -> None:
    """Create the bucket; wait up to a minute for the S3 server."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    endpoint = environ["MLFLOW_S3_ENDPOINT_URL"]
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        region_name=environ.get("AWS_DEFAULT_REGION", "us-east-1"),
    )
    deadline = time.monotonic() + _S3_WAIT_S
    while True:
        try:
            buckets = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
            if BUCKET not in buckets:
                client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise StackError(
                    f"the S3 server {endpoint} refuses requests: {error}",
                    "Check that it runs, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                ) from error
            time.sleep(_RETRY_S)
        else:
            return


def _connected(arguments: Mapping[str, Any]) -> Any:
    try:
        connection = connect(connect_timeout=10, **arguments)
    except OperationalError as error:
        raise StackError(
            f"Postgres on {arguments['host']}:{arguments['port']} refuses the connection: "
            + str(error).strip(),
            "Check that it runs, and the password of its superuser",
        ) from error
    connection.autocommit = True
    return connection


def _run(connection: Any, statements: sql.Composable) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)


def _make_roles(connection: Any, passwords: Mapping[Role, str]) -> None:
    for role, password in passwords.items():
        name = sql.Identifier(role)
        try:
            _run(connection, sql.SQL("CREATE ROLE {} LOGIN").format(name))
        except DuplicateObject:
            pass  # from an earlier start
        # The server never gets the password itself, so no log of statements can contain it.
        proof = encrypt_password(password, str(role), connection, "scram-sha-256")
        _run(connection, sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(proof)))


def _make_database(connection: Any) -> None:
    names = {"database": sql.Identifier(DATABASE), "owner": sql.Identifier(Role.OWNER)}
    try:
        _run(connection, sql.SQL("CREATE DATABASE {database} OWNER {owner}").format(**names))
    except DuplicateDatabase:
        pass  # from an earlier start


def _filled(template: str) -> sql.Composed:
    names = {role.name.lower(): sql.Identifier(role) for role in Role}
    return sql.SQL(template).format(
        database=sql.Identifier(DATABASE), schema=sql.Identifier(SCHEMA), **names
    )


#: No other roles may connect. MLflow creates its tables in public; radt's views may read them.
_RIGHTS_BEFORE = _filled("""
    REVOKE ALL ON DATABASE {database} FROM PUBLIC;
    GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {mlflow}, {writer}, {reader};
    REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    GRANT CREATE, USAGE ON SCHEMA public TO {mlflow};
    GRANT USAGE ON SCHEMA public TO {owner}, {writer}, {reader};
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO {owner}, {reader};
    ALTER DEFAULT PRIVILEGES FOR ROLE {mlflow} IN SCHEMA public
        GRANT SELECT ON TABLES TO {owner}, {reader};
""")

#: Later additions to the schema are included.
_RIGHTS = _filled("""
    GRANT USAGE ON SCHEMA {schema} TO {writer}, {reader};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {writer};
    GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {writer};
    GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader};
    ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
        GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {writer};
    ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
        GRANT USAGE, SELECT ON SEQUENCES TO {writer};
    ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
        GRANT SELECT ON TABLES TO {reader};
""")


if __name__ == "__main__":
    try:
        prepare(os.environ)
    except RadtError as error:
        sys.exit(str(error))
