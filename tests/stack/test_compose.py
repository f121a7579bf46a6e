"""compose.yaml is a valid one, keeps to itself what it should, and says what `radt stack` runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from radt.stack import services
from radt.stack.init import init_stack
from radt.stack.mlflow import AUTH_CONFIG, ArtifactAccess, command
from radt.stack.s3 import weed_arguments
from radt.stack.secrets_file import Secrets, read_values
from tests.stack.compose import COMPOSE, ROOT, MissingVariableError, overlaid, read

DIRECT = ROOT / "radt" / "stack" / "files" / "direct.yaml"


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    """A .env as `radt init-stack` writes it."""
    init_stack(tmp_path)
    return read_values((tmp_path / ".env").read_text("utf-8"))


@pytest.fixture
def secrets(values: dict[str, str]) -> Secrets:
    return Secrets.of(values)


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
    for name in Secrets.names():
        with pytest.raises(MissingVariableError, match=name):
            read(COMPOSE, {**values, name: ""})


def test_no_password_stands_in_a_command(stack: dict[str, Any], secrets: Secrets) -> None:
    for service in stack["services"].values():
        told = json.dumps([service.get("command"), service.get("healthcheck")])
        assert not any(getattr(secrets, name.lower()) in told for name in Secrets.names())


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


# The same as without containers --------------------------------------------------------------


def test_servers_are_told_what_radt_stack_tells_them(
    stack: dict[str, Any], secrets: Secrets
) -> None:
    place = services.IN_CONTAINERS
    told = {name: service.get("environment", {}) for name, service in stack["services"].items()}
    assert told["s3"] == services.s3_environment(secrets)
    assert told["prepare"] == services.prepare_environment(place, secrets)
    assert told["postgres"]["POSTGRES_PASSWORD"] == secrets.stack_postgres_password
    proxied = ArtifactAccess.PROXIED
    mlflow = services.mlflow_environment(place, secrets, proxied, with_auth=True)
    assert mlflow["MLFLOW_AUTH_CONFIG_PATH"] == str(AUTH_CONFIG)
    assert told["mlflow"] == {**mlflow, "MLFLOW_AUTH_CONFIG_PATH": "/etc/radt/mlflow_auth.ini"}
    dashboard = services.dashboard_environment(place, secrets, with_auth=True)
    assert told["dashboard"] == {**dashboard, "RADT_HOME": "/data"}


def test_direct_access_tells_mlflow_what_radt_stack_tells_it(
    stack: dict[str, Any], values: dict[str, str], secrets: Secrets
) -> None:
    both = overlaid(stack, read(DIRECT, values))
    direct = services.mlflow_environment(
        services.IN_CONTAINERS, secrets, ArtifactAccess.DIRECT, with_auth=True
    )
    told = both["services"]["mlflow"]["environment"]
    assert told["MLFLOW_DEFAULT_ARTIFACT_ROOT"] == direct["MLFLOW_DEFAULT_ARTIFACT_ROOT"]
    assert both["services"]["postgres"]["ports"] == ["127.0.0.1:5432:5432"]
    assert both["services"]["s3"]["ports"] == ["127.0.0.1:8333:8333"]
    assert "outside" in both["services"]["s3"]["networks"]


def test_commands_are_those_of_radt_stack(stack: dict[str, Any]) -> None:
    commands = {name: service.get("command") for name, service in stack["services"].items()}
    assert commands["s3"] == weed_arguments("s3", "0.0.0.0", "/data", {})
    hosts = next(part for part in commands["mlflow"] if part.startswith("--allowed-hosts="))
    expected = command(
        host="0.0.0.0", port=5000, workers=4, allowed_hosts=hosts.split("=", 1)[1], auth=True
    )
    assert commands["mlflow"] == ["mlflow", *expected]
    assert commands["dashboard"] == [
        "radt",
        *services.dashboard_command("0.0.0.0", 8050, "localhost"),
    ]
    assert commands["prepare"] == ["radt", "stack", "prepare"]


# radt init-stack -----------------------------------------------------------------------------


def test_init_writes_passwords_for_nobody_else_and_keeps_them(tmp_path: Path) -> None:
    first = init_stack(tmp_path)
    env = tmp_path / ".env"
    assert env.stat().st_mode & 0o777 == 0o600
    assert {".env", ".env.part"} <= set((tmp_path / ".gitignore").read_text().splitlines())
    again = init_stack(tmp_path)
    assert again.secrets == first.secrets
    assert again.written == ()

    lines = env.read_text().splitlines()
    mine = [line for line in lines if not line.startswith("STACK_READER_PASSWORD")]
    env.write_text("\n".join([*mine, "RADT_BIND=10.1.2.3"]))  # no newline at the end
    third = init_stack(tmp_path)
    text = env.read_text()
    assert text.startswith("\n".join(mine))
    assert read_values(text)["RADT_BIND"] == "10.1.2.3"
    assert third.secrets.stack_reader_password not in ("", first.secrets.stack_reader_password)
    assert third.secrets.stack_owner_password == first.secrets.stack_owner_password


def test_passwords_are_all_different_and_long(secrets: Secrets) -> None:
    found = [getattr(secrets, name.lower()) for name in Secrets.names()]
    assert len(set(found)) == len(found)
    assert min(map(len, found)) >= 24


def test_init_elsewhere_writes_a_stack_that_stands_alone(tmp_path: Path) -> None:
    done = init_stack(tmp_path / "team")
    folder = tmp_path / "team"
    stack = read(folder / "compose.yaml", read_values((folder / ".env").read_text()))
    PyCompose.from_yaml(yaml.safe_dump(stack))
    build = stack["services"]["mlflow"]["build"]
    assert build["context"] == "stack"  # not the folder with the passwords in it
    assert "dockerfile" not in build and (folder / "stack" / "Dockerfile").exists()
    for service in stack["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (folder / source).exists()
    assert folder / "compose.yaml" in done.written
    assert "radt/stack/files" not in (folder / "compose.yaml").read_text()
    assert "radt/stack/files" not in (folder / "stack" / "direct.yaml").read_text()

    mine = "services: {}\n"
    (folder / "compose.yaml").write_text(mine)
    assert folder / "compose.yaml" in init_stack(folder).kept
    assert (folder / "compose.yaml").read_text() == mine


def test_init_in_a_checkout_uses_its_files(tmp_path: Path) -> None:
    files = tmp_path / "radt" / "stack" / "files"
    shutil.copytree(DIRECT.parent, files)
    done = init_stack(tmp_path)
    assert [path.name for path in done.written] == [".env"]
    assert not (tmp_path / "stack").exists()
