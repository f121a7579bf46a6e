"""What the stack is made of: names, roles, commands and environments of its servers.

`radt stack up` runs these; ``compose.yaml`` says the same of containers, and tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from radt.stack.mlflow import ArtifactAccess, Auth, Bucket, Database, environment
from radt.stack.postgres import SUPERUSER
from radt.stack.secrets_file import Secrets

#: The database that MLflow (schema public) and radt (schema radt) share, so that views may join.
DATABASE = "radt"
BUCKET = "radt"
S3_ACCESS_KEY = "radt"


class Role(StrEnum):
    """Roles of the database, each with a password of its own."""

    #: Owns the database and radt's schema; brings it up to date.
    OWNER = "radt"
    #: MLflow's server; owns MLflow's tables.
    MLFLOW = "mlflow"
    #: Machines that record: rows of radt's schema.
    WRITER = "radt_writer"
    #: The dashboard and people's notebooks: reads all, writes nothing.
    READER = "radt_reader"


def role_passwords(secrets: Secrets) -> dict[Role, str]:
    """The passwords by role."""
    return {
        Role.OWNER: secrets.stack_owner_password,
        Role.MLFLOW: secrets.stack_mlflow_password,
        Role.WRITER: secrets.stack_writer_password,
        Role.READER: secrets.stack_reader_password,
    }


@dataclass(frozen=True, slots=True)
class Place:
    """Where servers find each other: in containers by service, else on loopback by port."""

    postgres_host: str
    postgres_port: int
    s3_endpoint: str
    s3_access_key: str
    mlflow_uri: str


#: In ``compose.yaml``.
IN_CONTAINERS = Place("postgres", 5432, "http://s3:8333", S3_ACCESS_KEY, "http://mlflow:5000")


def database(place: Place, role: Role, password: str) -> Database:
    """The database as a role sees it."""
    return Database(place.postgres_host, place.postgres_port, DATABASE, role, password)


def bucket(place: Place, secrets: Secrets) -> Bucket:
    """Where artifacts lie."""
    return Bucket(place.s3_endpoint, BUCKET, place.s3_access_key, secrets.stack_s3_secret_key)


def auth(secrets: Secrets) -> Auth:
    """MLflow's administrator."""
    return Auth(secrets.stack_mlflow_admin_password, secrets.stack_mlflow_form_key)


def store_uri(place: Place, role: Role, password: str = "") -> str:
    """The store as a role reaches it; without a password, libpq looks for that itself."""
    secret = f":{quote(password, safe='')}" if password else ""
    return f"postgresql://{role}{secret}@{place.postgres_host}:{place.postgres_port}/{DATABASE}"


def mlflow_environment(
    place: Place, secrets: Secrets, access: ArtifactAccess, *, with_auth: bool
) -> dict[str, str]:
    """What MLflow's server is told."""
    return environment(
        database(place, Role.MLFLOW, secrets.stack_mlflow_password),
        bucket(place, secrets),
        access,
        auth(secrets) if with_auth else None,
    )


def mlflow_client_environment(place: Place, secrets: Secrets, *, with_auth: bool) -> dict[str, str]:
    """What MLflow's clients are told of the server."""
    found = {"MLFLOW_TRACKING_URI": place.mlflow_uri}
    if with_auth:
        found["MLFLOW_TRACKING_USERNAME"] = auth(secrets).user
        found["MLFLOW_TRACKING_PASSWORD"] = secrets.stack_mlflow_admin_password
    return found


def dashboard_command(host: str, port: int, name: str = "") -> list[str]:
    """Of the ``radt`` command; ``name`` is what other machines call this one."""
    named = [f"--public-name={name}"] if name else []
    return ["dashboard", f"--host={host}", f"--port={port}", *named, "--no-browser"]


def dashboard_environment(place: Place, secrets: Secrets, *, with_auth: bool) -> dict[str, str]:
    """What the dashboard is told: it reads the store as somebody who may not write.

    Only the process that loads the archives of runs which machines could bring to nobody but MLflow
    writes.
    """
    return {
        "RADT_STORE_URI": store_uri(place, Role.READER),
        "PGPASSWORD": secrets.stack_reader_password,
        "RADT_DASHBOARD_LOAD_URI": store_uri(place, Role.WRITER, secrets.stack_writer_password),
        "RADT_DASHBOARD_TOKEN": secrets.radt_dashboard_token,
        **mlflow_client_environment(place, secrets, with_auth=with_auth),
        **bucket(place, secrets).environ,
    }


def prepare_environment(place: Place, secrets: Secrets) -> dict[str, str]:
    """What `radt stack prepare` is told: where all is, and the passwords to set."""
    passwords = {
        name.upper(): getattr(secrets, name)
        for name in (
            "stack_owner_password",
            "stack_mlflow_password",
            "stack_writer_password",
            "stack_reader_password",
        )
    }
    return {
        "PGHOST": place.postgres_host,
        "PGPORT": str(place.postgres_port),
        "PGUSER": SUPERUSER,
        "PGPASSWORD": secrets.stack_postgres_password,
        **passwords,
        **bucket(place, secrets).environ,
    }


def s3_environment(secrets: Secrets) -> dict[str, str]:
    """The keys of its only user; without them SeaweedFS would let everybody in."""
    return {
        "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": secrets.stack_s3_secret_key,
    }
