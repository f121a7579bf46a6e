"""Makes servers that have just been started a stack: roles, the database, radt's schema, a bucket.

Everything may be there already, from an earlier start or from one that was cut off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from psycopg2 import OperationalError, connect, sql
from psycopg2.errors import DuplicateDatabase, DuplicateObject
from psycopg2.extensions import encrypt_password

from radt.errors import StackError
from radt.stack.mlflow import Bucket
from radt.stack.services import BUCKET, DATABASE, Place, Role, store_uri
from radt.store.address import StoreAddress
from radt.store.writer import StoreWriter

SCHEMA = "radt"
_WAIT_S = 60.0
_SECOND = 1.0


def prepare_database(
    place: Place, superuser: str, superuser_password: str, passwords: Mapping[Role, str]
) -> None:
    """Roles, database, schema and rights.

    Args:
        place: Where Postgres is.
        superuser: Who may make roles.
        superuser_password: The superuser's.
        passwords: What the roles' passwords shall be, also if they are others now.

    Raises:
        StackError: Postgres does not answer.
        StoreError: The schema cannot be brought up to date.
    """
    as_superuser = {
        "host": place.postgres_host,
        "port": place.postgres_port,
        "user": superuser,
        "password": superuser_password,
    }
    server = _connected({**as_superuser, "dbname": "postgres"})
    try:
        _make_roles(server, passwords)
        _make_database(server)
    finally:
        server.close()
    there = _connected({**as_superuser, "dbname": DATABASE})
    try:
        _run(there, _RIGHTS_BEFORE)
        owner = store_uri(place, Role.OWNER, passwords[Role.OWNER])
        StoreWriter(StoreAddress.of(owner), upgrade=True).close()
        _run(there, _RIGHTS)
    finally:
        there.close()


def prepare_bucket(bucket: Bucket) -> None:
    """The bucket, waiting for the S3 server for a minute.

    Raises:
        StackError: It does not answer, or does not let us in.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        region_name=bucket.region,
    )
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            have = {one["Name"] for one in client.list_buckets()["Buckets"]}
            if bucket.name not in have:
                client.create_bucket(Bucket=bucket.name)
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise StackError(
                    f"the S3 server {bucket.endpoint} cannot be used: {error}",
                    "Check that it runs, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                ) from error
            time.sleep(_SECOND)
        else:
            return


def prepare_from_environment(environ: Mapping[str, str] = os.environ) -> None:
    """As `radt stack prepare` does, which ``compose.yaml`` runs once before the other services.

    Raises:
        StackError: A variable is missing, or a server does not answer.
    """
    needed = (*_VARIABLES, *_PASSWORD_VARIABLES.values())
    if missing := [name for name in needed if not environ.get(name)]:
        raise StackError(
            f"{', '.join(missing)}: not set",
            "This command is for containers (compose.yaml); without them: radt stack up",
        )
    keys = (environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"])
    endpoint = environ["MLFLOW_S3_ENDPOINT_URL"]
    place = Place(environ["PGHOST"], int(environ["PGPORT"]), endpoint, keys[0], "")
    passwords = {role: environ[name] for role, name in _PASSWORD_VARIABLES.items()}
    prepare_database(place, environ["PGUSER"], environ["PGPASSWORD"], passwords)
    prepare_bucket(Bucket(endpoint, BUCKET, *keys))


_VARIABLES = (
    *("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD"),
    *("MLFLOW_S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
)
_PASSWORD_VARIABLES = {
    Role.OWNER: "STACK_OWNER_PASSWORD",
    Role.MLFLOW: "STACK_MLFLOW_PASSWORD",
    Role.WRITER: "STACK_WRITER_PASSWORD",
    Role.READER: "STACK_READER_PASSWORD",
}


def _connected(arguments: Mapping[str, Any]) -> Any:
    try:
        connection = connect(connect_timeout=10, **arguments)
    except OperationalError as error:
        raise StackError(
            f"Postgres on {arguments['host']}:{arguments['port']} does not let us in: "
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
            pass  # of an earlier start
        # The server never sees the password itself, so no log of statements can show it.
        proof = encrypt_password(password, str(role), connection, "scram-sha-256")
        _run(connection, sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(proof)))


def _make_database(connection: Any) -> None:
    names = {"database": sql.Identifier(DATABASE), "owner": sql.Identifier(Role.OWNER)}
    try:
        _run(connection, sql.SQL("CREATE DATABASE {database} OWNER {owner}").format(**names))
    except DuplicateDatabase:
        pass  # of an earlier start


def _filled(template: str) -> sql.Composed:
    names = {role.name.lower(): sql.Identifier(role) for role in Role}
    return sql.SQL(template).format(
        database=sql.Identifier(DATABASE), schema=sql.Identifier(SCHEMA), **names
    )


#: Nobody else may connect. MLflow makes its tables in public; radt's views may read them.
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

#: What later versions of the schema add is included.
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
