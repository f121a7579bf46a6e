"""compose.yaml is valid, publishes only what it should, and `radt init-stack` completes it."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml
from compose_spec import PyCompose

from radt.cli import main
from radt.compose import prepare
from radt.compose.init import SECRET_NAMES, init_stack, read_env
from radt.errors import StackError
from tests.compose.compose import COMPOSE, ROOT, MissingVariableError, overlaid, read
from tests.support.daemon import LOOPBACK
from tests.support.mlflow_server import Bucket
from tests.support.postgres import SUPERUSER
from tests.support.servers import PASSWORD, postgres_cluster

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


def test_mlflow_s_name_on_the_network_is_allowed(values: dict[str, str]) -> None:
    stack = read(COMPOSE, {**values, "STACK_HOST": "gpu1.example.org", "STACK_MLFLOW_PORT": "80"})
    (allowed,) = [
        argument.split("=", 1)[1].split(",")
        for argument in stack["services"]["mlflow"]["command"]
        if argument.startswith("--allowed-hosts=")
    ]
    assert set(allowed) == {
        *("mlflow:5000", "localhost:80", "127.0.0.1:80"),
        *("gpu1.example.org", "gpu1.example.org:80"),
    }


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
    told = both["services"]["mlflow"]["environment"]
    assert told["MLFLOW_DEFAULT_ARTIFACT_ROOT"] == f"s3://{prepare.BUCKET}"
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


def test_prepare_makes_roles_schema_and_bucket_and_may_be_repeated(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "BUCKET", bucket.name)
    passwords = dict.fromkeys(prepare._PASSWORD_VARIABLES.values(), "first")
    with postgres_cluster() as postgres:
        environ = {
            **bucket.environ,
            "PGHOST": LOOPBACK,
            "PGPORT": str(postgres.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": PASSWORD,
        }
        with pytest.raises(StackError, match="STACK_WRITER_PASSWORD"):
            prepare.prepare(environ)
        prepare.prepare({**environ, **passwords})
        prepare.prepare({**environ, **passwords, "STACK_READER_PASSWORD": "sécond/"})

        def query(role: prepare.Role, password: str, statement: str) -> None:
            uri = postgres.uri(prepare.DATABASE, role, password)
            with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
                cursor.execute(statement)

        query(prepare.Role.READER, "sécond/", "SELECT * FROM radt.run")
        query(prepare.Role.WRITER, "first", "DELETE FROM radt.run")
        query(prepare.Role.MLFLOW, "first", "CREATE TABLE public.runs (n int)")
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


def test_init_in_a_checkout_uses_its_files(tmp_path: Path) -> None:
    files = tmp_path / "radt" / "compose" / "files"
    shutil.copytree(DIRECT.parent, files)
    done = init_stack(tmp_path)
    assert [path.name for path in done.written] == [".env"]
    assert not (tmp_path / "stack").exists()
