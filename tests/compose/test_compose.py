"""compose.yaml is valid, publishes only what it should, and `radt init-stack` completes it."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy
import yaml
from alembic import command
from compose_spec import PyCompose
from mlflow.store.db.utils import _get_alembic_config, _get_latest_schema_revision
from mlflow.store.tracking.dbmodels.initial_models import Base as InitialBase

from radt import __version__
from radt.cli import main
from radt.compose import prepare
from radt.compose.init import SECRET_NAMES, init_stack, read_env
from radt.errors import StackError
from radt.masking import with_driver
from tests.compose.compose import COMPOSE, ROOT, MissingVariableError, overlaid, read
from tests.support.daemon import LOOPBACK
from tests.support.mlflow_server import Bucket
from tests.support.postgres import SUPERUSER
from tests.support.servers import PASSWORD, postgres_cluster, run_sql

_MLFLOW_2 = "97727af70f4d"
DIRECT = ROOT / "radt" / "compose" / "files" / "direct.yaml"


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    """A .env as `radt init-stack` writes it."""
    init_stack(tmp_path)
    return read_env((tmp_path / ".env").read_text("utf-8"))


@pytest.fixture
def stack(values: dict[str, str]) -> dict[str, Any]:
    return read(COMPOSE, values)


def names_of(service: dict[str, Any], part: str) -> set[str]:
    """Of networks and dependencies, which are lists or mappings."""
    return set(service.get(part, ()))


# What Compose would say ----------------------------------------------------------------------


def test_it_keeps_to_the_specification(stack: dict[str, Any], values: dict[str, str]) -> None:
    parsed = PyCompose.from_yaml(yaml.safe_dump(stack))
    assert set(parsed.service_names()) == set(stack["services"])
    PyCompose.from_yaml(yaml.safe_dump(overlaid(stack, read(DIRECT, values))))
    broken = json.loads(json.dumps(stack))
    broken["services"]["mlflow"]["healthcheck"]["interval"] = "often"
    with pytest.raises(ValueError, match="often"):
        PyCompose.from_yaml(yaml.safe_dump(broken))


def test_what_services_refer_to_is_there(stack: dict[str, Any]) -> None:
    for service in stack["services"].values():
        assert names_of(service, "networks") <= set(stack["networks"])
        assert names_of(service, "networks")
        for other, how in service.get("depends_on", {}).items():
            waited_for = stack["services"][other]
            if how["condition"] == "service_healthy":
                assert "healthcheck" in waited_for
            else:
                assert how["condition"] == "service_completed_successfully"
                assert waited_for["restart"] == "on-failure"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (
                (ROOT / source).exists() if source.startswith(".") else (source in stack["volumes"])
            )
    used = {v.split(":")[0] for s in stack["services"].values() for v in s.get("volumes", ())}
    assert set(stack["volumes"]) <= used


def test_images_are_pinned(stack: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in stack["services"].items()}
    assert images["postgres"].startswith("postgres:17.")
    for image in images.values():
        assert re.search(r":v?\d+\.\d+", image), image
        assert not image.endswith("latest")


def test_every_server_has_a_health_check_and_comes_back(stack: dict[str, Any]) -> None:
    for name, service in stack["services"].items():
        if name not in ("prepare", "caddy"):
            assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] in ("unless-stopped", "on-failure")


# What others can reach -----------------------------------------------------------------------


def test_only_mlflow_and_the_dashboard_are_published_and_on_loopback(
    stack: dict[str, Any], values: dict[str, str]
) -> None:
    published = {
        name: service["ports"]
        for name, service in stack["services"].items()
        if "ports" in service and "profiles" not in service
    }
    assert published == {
        "mlflow": ["127.0.0.1:5000:5000"],
        "dashboard": ["127.0.0.1:8050:8050"],
    }
    assert names_of(stack["services"]["postgres"], "networks") == {"inside"}
    assert names_of(stack["services"]["s3"], "networks") == {"inside"}
    assert stack["networks"]["inside"] == {"internal": True}
    elsewhere = read(COMPOSE, {**values, "RADT_BIND": "10.0.0.7"})
    assert elsewhere["services"]["mlflow"]["ports"] == ["10.0.0.7:5000:5000"]
    assert elsewhere["services"]["caddy"]["profiles"] == ["tls"]


def test_without_passwords_nothing_starts(values: dict[str, str]) -> None:
    for name in SECRET_NAMES:
        with pytest.raises(MissingVariableError, match=name):
            read(COMPOSE, {**values, name: ""})


def test_no_password_stands_in_a_command(stack: dict[str, Any], values: dict[str, str]) -> None:
    for service in stack["services"].values():
        commands = json.dumps([service.get("command"), service.get("healthcheck")])
        assert not any(values[name] in commands for name in SECRET_NAMES)


def option_of(service: dict[str, Any], name: str) -> set[str]:
    (value,) = [
        argument.removeprefix(f"--{name}=")
        for argument in service["command"]
        if argument.startswith(f"--{name}=")
    ]
    return set(value.split(","))


def test_mlflow_s_name_on_the_network_is_allowed(values: dict[str, str]) -> None:
    stack = read(COMPOSE, {**values, "STACK_HOST": "gpu1.example.org", "STACK_MLFLOW_PORT": "81"})
    mlflow = stack["services"]["mlflow"]
    assert option_of(mlflow, "allowed-hosts") == {
        *("mlflow:5000", "localhost:81", "127.0.0.1:81"),
        *("gpu1.example.org", "gpu1.example.org:81"),
    }
    # Its pages send their origin with each search.
    assert option_of(mlflow, "cors-allowed-origins") == {
        *("http://gpu1.example.org:81", "https://gpu1.example.org"),
    }


def test_the_dashboard_trusts_caddy_only_and_prints_its_published_address(
    values: dict[str, str],
) -> None:
    own = {"STACK_HOST": "gpu1", "STACK_DASHBOARD_PORT": "81", "STACK_PROXY_PREFIX": "10.1.2"}
    stack = read(COMPOSE, {**values, **own})
    dashboard, caddy = stack["services"]["dashboard"], stack["services"]["caddy"]
    assert option_of(dashboard, "public-name") == {"gpu1:81"}
    assert option_of(dashboard, "trust-proxy") == {caddy["networks"]["proxy"]["ipv4_address"]}
    (config,) = stack["networks"]["proxy"]["ipam"]["config"]
    address = ipaddress.ip_address("10.1.2.2")
    assert address in ipaddress.ip_network(config["subnet"])
    assert address not in ipaddress.ip_network(config["ip_range"])


def test_the_image_needs_nothing_but_its_base() -> None:
    """A syntax line would have the engine fetch a compiler for the file, from a registry."""
    assert "syntax=" not in (DIRECT.parent / "Dockerfile").read_text()


# What the services are told ------------------------------------------------------------------


def test_services_share_passwords_roles_and_places(
    stack: dict[str, Any], values: dict[str, str]
) -> None:
    told = {name: service.get("environment", {}) for name, service in stack["services"].items()}
    keys = {key: told["s3"][key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    assert keys["AWS_SECRET_ACCESS_KEY"] == values["STACK_S3_SECRET_KEY"]
    for name in ("prepare", "mlflow", "dashboard"):
        assert told[name].items() >= {**keys, "MLFLOW_S3_ENDPOINT_URL": "http://s3:8333"}.items()
    assert told["postgres"]["POSTGRES_PASSWORD"] == told["prepare"]["PGPASSWORD"]
    assert told["mlflow"]["PGUSER"] == prepare.Role.MLFLOW
    assert told["mlflow"]["PGPASSWORD"] == told["prepare"]["STACK_MLFLOW_PASSWORD"]
    assert told["mlflow"]["PGDATABASE"] == prepare.DATABASE
    assert told["mlflow"]["MLFLOW_ARTIFACTS_DESTINATION"] == f"s3://{prepare.BUCKET}"
    assert f"{prepare.Role.READER}@postgres" in told["dashboard"]["RADT_STORE_URI"]
    assert told["dashboard"]["PGPASSWORD"] == told["prepare"]["STACK_READER_PASSWORD"]
    writer = f"{prepare.Role.WRITER}:{values['STACK_WRITER_PASSWORD']}@postgres"
    assert writer in told["dashboard"]["RADT_DASHBOARD_LOAD_URI"]
    assert (
        told["dashboard"]["MLFLOW_TRACKING_PASSWORD"]
        == told["mlflow"]["MLFLOW_AUTH_ADMIN_PASSWORD"]
    )


def test_direct_access_publishes_postgres_and_s3(
    stack: dict[str, Any], values: dict[str, str]
) -> None:
    both = overlaid(stack, read(DIRECT, values))
    assert both["services"]["mlflow"] == stack["services"]["mlflow"]
    told = both["services"]["mlflow"]["environment"]
    assert told["MLFLOW_DEFAULT_ARTIFACT_ROOT"] == "mlflow-artifacts:/"
    assert both["services"]["postgres"]["ports"] == ["127.0.0.1:5432:5432"]
    assert both["services"]["s3"]["ports"] == ["127.0.0.1:8333:8333"]
    assert "outside" in both["services"]["s3"]["networks"]


def test_radt_s_commands_exist(stack: dict[str, Any]) -> None:
    assert stack["services"]["prepare"]["command"] == ["python", "-m", "radt.compose.prepare"]
    program, command, *options = stack["services"]["dashboard"]["command"]
    assert program == "radt"
    with pytest.raises(SystemExit) as ended:
        main([command, *options, "--help"])
    assert ended.value.code == 0


def _make_tables_of_mlflow_2(uri: str) -> Callable[[], str]:
    """MLflow's tables as version 2.0 left them; their version."""
    engine = sqlalchemy.create_engine(with_driver(uri))
    InitialBase.metadata.create_all(engine)
    config = _get_alembic_config("")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, _MLFLOW_2)

    def version() -> str:
        with engine.connect() as connection:
            query = sqlalchemy.text("SELECT version_num FROM alembic_version")
            return str(connection.execute(query).scalar_one())

    assert version() == _MLFLOW_2
    return version


def test_prepare_makes_roles_schema_and_bucket_and_may_be_repeated(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "BUCKET", bucket.name)
    passwords = dict.fromkeys(prepare._PASSWORD_VARIABLES.values(), "first")
    with postgres_cluster() as postgres:
        environ = {
            "PATH": os.environ["PATH"],
            **bucket.environ,
            "PGHOST": LOOPBACK,
            "PGPORT": str(postgres.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": PASSWORD,
        }
        with pytest.raises(StackError, match="STACK_WRITER_PASSWORD"):
            prepare.prepare(environ)

        def query(role: prepare.Role, password: str, statement: str) -> None:
            uri = postgres.uri(prepare.DATABASE, role, password)
            with (
                closing(psycopg2.connect(uri)) as connection,
                connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement)

        for role in (prepare.Role.OWNER, prepare.Role.MLFLOW):
            run_sql(postgres, f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
        run_sql(postgres, f"CREATE DATABASE {prepare.DATABASE} OWNER {prepare.Role.OWNER}")
        query(prepare.Role.OWNER, "first", "GRANT ALL ON SCHEMA public TO mlflow")
        mlflow = postgres.uri(prepare.DATABASE, prepare.Role.MLFLOW, "first")
        version = _make_tables_of_mlflow_2(mlflow)
        prepare.prepare({**environ, **passwords})
        assert version() == _get_latest_schema_revision()
        prepare.prepare({**environ, **passwords, "STACK_READER_PASSWORD": "sécond/"})

        query(prepare.Role.READER, "sécond/", "SELECT * FROM radt.run")
        query(prepare.Role.WRITER, "first", "DELETE FROM radt.run")
        query(prepare.Role.MLFLOW, "first", "CREATE TABLE public.mine (n int)")
        query(prepare.Role.READER, "sécond/", "SELECT * FROM public.runs")
        with pytest.raises(psycopg2.OperationalError, match="password"):
            query(prepare.Role.READER, "first", "SELECT 1")
        for role, password, statement in (
            (prepare.Role.READER, "sécond/", "DELETE FROM radt.run"),
            (prepare.Role.WRITER, "first", "DROP TABLE radt.run"),
            (prepare.Role.MLFLOW, "first", "SELECT * FROM radt.run"),
        ):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                query(role, password, statement)


# radt init-stack -----------------------------------------------------------------------------


def test_init_writes_passwords_for_nobody_else_and_keeps_them(tmp_path: Path) -> None:
    init_stack(tmp_path)
    env = tmp_path / ".env"
    first = read_env(env.read_text())
    assert env.stat().st_mode & 0o777 == 0o600
    assert {".env", ".env.part"} <= set((tmp_path / ".gitignore").read_text().splitlines())
    assert init_stack(tmp_path).written == ()
    assert read_env(env.read_text()) == first

    lines = env.read_text().splitlines()
    mine = [line for line in lines if not line.startswith("STACK_READER_PASSWORD")]
    env.write_text("\n".join([*mine, "RADT_BIND=10.1.2.3"]))  # no newline at the end
    init_stack(tmp_path)
    text = env.read_text()
    assert text.startswith("\n".join(mine))
    third = read_env(text)
    assert third.pop("RADT_BIND") == "10.1.2.3"
    assert third.pop("STACK_READER_PASSWORD") not in ("", first.pop("STACK_READER_PASSWORD"))
    assert third == first


def test_passwords_are_all_different_and_long(values: dict[str, str]) -> None:
    passwords = [values[name] for name in SECRET_NAMES]
    assert len(set(passwords)) == len(passwords)
    assert min(map(len, passwords)) >= 24


def test_init_elsewhere_writes_a_stack_that_stands_alone(tmp_path: Path) -> None:
    done = init_stack(tmp_path / "team")
    folder = tmp_path / "team"
    stack = read(folder / "compose.yaml", read_env((folder / ".env").read_text()))
    PyCompose.from_yaml(yaml.safe_dump(stack))
    build = stack["services"]["mlflow"]["build"]
    assert build["context"] == "stack"  # not the folder with the passwords in it
    assert "dockerfile" not in build and (folder / "stack" / "Dockerfile").exists()
    for service in stack["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (folder / source).exists()
    assert folder / "compose.yaml" in done.written
    assert "radt/compose/files" not in (folder / "compose.yaml").read_text()
    assert "radt/compose/files" not in (folder / "stack" / "direct.yaml").read_text()

    mine = "services: {}\n"
    (folder / "compose.yaml").write_text(mine)
    assert folder / "compose.yaml" in init_stack(folder).kept
    assert (folder / "compose.yaml").read_text() == mine


def test_an_upgrade_replaces_the_files_and_the_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["init-stack", *options, str(tmp_path)])
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    assert "--upgrade" not in init()
    env, compose = tmp_path / ".env", tmp_path / "compose.yaml"
    current = compose.read_text()
    before = read_env(env.read_text())
    assert "token: RADT_DASHBOARD_TOKEN in" in init()
    assert "http://localhost:8050 " in init() and "http://localhost:5000 " in init()

    mine = "RADT_BIND=0.0.0.0\nSTACK_HOST=gpu1\nSTACK_MLFLOW_PORT=80\nSTACK_DASHBOARD_PORT=81\n"
    env.write_text(env.read_text().replace(f"={__version__}\n", "=0.9\n") + mine)
    compose.write_text("services: {}\n")
    out = init()
    assert "of radt 0.9" in out and f"radt init-stack --upgrade {tmp_path}\n" in out
    assert "http://gpu1:81 " in out and "http://gpu1:80 " in out
    assert compose.read_text() == "services: {}\n"

    assert f"saved    {compose}.old\n" in init("--upgrade")
    assert (compose.read_text(), Path(f"{compose}.old").read_text()) == (current, "services: {}\n")
    assert read_env(env.read_text()) == before | read_env(mine)
    env.write_text(env.read_text() + "COMPOSE_PROFILES=tls\n")
    out = init("--upgrade")
    assert "https://gpu1:8443 " in out and "https://gpu1 " in out
    assert "written" not in out and "saved" not in out
    compose.write_text("services: {mine: {}}\n")
    assert f"saved    {compose}.old2\n" in init("--upgrade")
    assert Path(f"{compose}.old").read_text() == "services: {}\n"


def test_init_in_a_checkout_uses_its_files(tmp_path: Path) -> None:
    files = tmp_path / "radt" / "compose" / "files"
    shutil.copytree(DIRECT.parent, files)
    done = init_stack(tmp_path)
    assert [path.name for path in done.written] == [".env"]
    assert not (tmp_path / "stack").exists()
