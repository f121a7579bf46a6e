"""Wheel and sdist hold every package once, and work where nothing else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]["packages"]
#: By the tests' own setuptools: a temporary environment for it would come from the network.
BUILD = (sys.executable, "-m", "build", "--no-isolation")


def folder_of(package: str) -> Path:
    """The folder of a package; three of them are symbolic links to the top level."""
    return ROOT.joinpath(*package.split("."))


def source_files() -> set[str]:
    """Every file of the package as it must stand in a wheel."""
    found = set()
    for package in PACKAGES:
        folder = folder_of(package)
        found |= {f"{package.replace('.', '/')}/{path.name}" for path in folder.glob("*.py")}
    found.add("radt/py.typed")
    for part, pattern in (
        ("frontend", "static/*"),
        ("frontend", "templates/*"),
        ("frontend", "vendor/*"),
        ("listeners", "data/*"),
        ("render", "templates/*"),
        ("schemas", "migrations/*/*.sql"),
        ("schemas", "*.json"),
        ("schemas", "*.sql"),
    ):
        top = folder_of(f"radt.{part}")
        found |= {f"radt/{part}/{path.relative_to(top)}" for path in top.glob(pattern)}
    compose = ROOT / "radt" / "compose"  # compose.yaml among them, which is a link
    found |= {f"radt/compose/files/{path.name}" for path in (compose / "files").iterdir()}
    return found


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, built from a copy of the tracked and new files."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        # A checkout may belong to another user, as in containers.
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    files = b"\0".join(name for name in listed if name and (ROOT / os.fsdecode(name)).exists())
    packed = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=ROOT,
        input=files,
        capture_output=True,
        check=True,
    ).stdout
    subprocess.run(["tar", "--extract"], cwd=source, input=packed, check=True)
    subprocess.run(
        [*BUILD, "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


def test_every_folder_with_code_is_listed() -> None:
    on_disk = {"radt"}
    for folder in (ROOT / "radt").iterdir():
        top = folder.resolve()  # three of them are links
        on_disk |= {
            ".".join(("radt", folder.name, *path.parent.relative_to(top).parts))
            for path in top.rglob("__init__.py")
        }
    assert sorted(PACKAGES) == sorted(on_disk)


def test_wheel_holds_every_file_once(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(source_files())


@pytest.mark.long
def test_sdist_builds_the_same_wheel(distributions: dict[str, Path], tmp_path: Path) -> None:
    subprocess.run(
        ["tar", "--extract", "--file", str(distributions["sdist"])], cwd=tmp_path, check=True
    )
    (unpacked,) = tmp_path.iterdir()
    subprocess.run(
        [*BUILD, "--wheel", "--outdir", str(tmp_path), str(unpacked)],
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(source_files())


def test_installed_wheel_imports_without_dependencies(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", str(distributions["wheel"])],
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        [
            python,
            "-c",
            "import radt, radt.listeners.api, radt.schemas, pathlib; "
            "print(radt.__version__, pathlib.Path(radt.__file__).parent)",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    version, folder = done.stdout.split()
    assert version
    assert Path(folder).is_relative_to(tmp_path / "venv")


#: What a base installation lacks: packages of extras, and those that all of MLflow brings.
_NOT_IN_BASE = (
    *(
        "PIL",
        "aiohttp",
        "apprise",
        "docker",
        "flask_cors",
        "flask_wtf",
        "graphene",
    ),
    *("gunicorn", "huey", "matplotlib", "mlflow.server.auth", "skops"),
    *("tensorboard", "torch", "wandb"),
)
_IMPORTED_WITH_THEIR_PACKAGES = ("radt.importers.tensorboard", "radt.importers.wandb")
_PACKAGES_FOR_OTHERS = ("radt.integrations.", "radt.loaders.", "radt.training.")
_BASE = """
import importlib, pathlib, sys
sys.modules |= dict.fromkeys(sys.argv[1].split(","))
for name in sys.argv[2:]:
    importlib.import_module(name)
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///built.db")  # by MLflow's own migrations
study = client.create_experiment("study", pathlib.Path("files").absolute().as_uri())
run = client.create_run(study)
client.log_batch(run.info.run_id, [Metric("loss", 0.5, 1, 1)])
client.log_text(run.info.run_id, "text", "note.txt")
assert client.get_run(run.info.run_id).data.metrics == {"loss": 0.5}
"""


@pytest.mark.long
def test_a_base_installation_has_all_that_radt_and_mlflows_client_need(tmp_path: Path) -> None:
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in source_files()
        if name.endswith(".py") and not name.endswith("__main__.py")
    }
    modules = {
        name
        for name in modules - set(_IMPORTED_WITH_THEIR_PACKAGES)
        if not name.startswith(_PACKAGES_FOR_OTHERS)
    }
    done = subprocess.run(
        [sys.executable, "-c", _BASE, ",".join(_NOT_IN_BASE), *sorted(modules)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "files").exists()
