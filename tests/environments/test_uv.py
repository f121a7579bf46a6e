"""uv environments, built by the real uv from packages in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radt.environments.build import BuiltEnvironment, Launch
from radt.environments.uv import PipConfig
from radt.errors import EnvironmentBuildError
from tests.support.environments import Tools, Workbench, make_wheel


def run(built: BuiltEnvironment, launch: Launch) -> str:
    """Start it as the runner does, and return what it prints."""
    built.prepare(launch, print)
    done = subprocess.run(
        built.command(launch),
        cwd=launch.folder,
        env={**launch.variables, **built.variables(launch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def wheels(bench: Workbench) -> Path:
    folder = bench.folder.parent / "wheels"
    make_wheel(folder, "radtdemo", "1.0")
    make_wheel(folder, "radtdemo", "2.0")
    return folder


def requirements(
    bench: Workbench, wheels: Path, *lines: str, name: str = "requirements.txt"
) -> Path:
    return bench.write(name, "\n".join(["--no-index", f"--find-links {wheels}", *lines, ""]))


def test_requirements_are_installed_and_scripts_find_them(bench: Workbench, wheels: Path) -> None:
    requirements(bench, wheels, "radtdemo==1.0")
    built = bench.build("uv")
    script = bench.write("train.py", "import radtdemo; print(radtdemo.VERSION)")
    assert run(built, bench.launch(str(script))) == "1.0"
    assert built.packages.splitlines()[1:] == ["radtdemo==1.0"]
    assert built.packages.startswith("python==3")
    assert built.interpreter is not None
    assert built.interpreter.is_relative_to(bench.cache)
    assert bench.said[-1].startswith("built uv:requirements.txt in ")


def test_the_second_build_asks_no_tool(
    bench: Workbench, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements(bench, wheels, "radtdemo")
    first = bench.build("uv")
    bench.said.clear()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")  # uv is beside it
    assert bench.build("uv") == first
    assert bench.said == []


def test_a_use_is_noted(bench: Workbench, wheels: Path) -> None:
    requirements(bench, wheels, "radtdemo")
    bench.build("uv")
    (mark,) = bench.cache.glob("*/complete")
    os.utime(mark, (1, 1))
    bench.build("uv")
    assert mark.stat().st_mtime > 1


def test_a_changed_file_that_is_included_makes_another_environment(
    bench: Workbench, wheels: Path
) -> None:
    requirements(bench, wheels, "radtdemo==1.0", name="shared/base.txt")
    bench.write("requirements.txt", "-r shared/base.txt\n")
    first = bench.build("uv")
    requirements(bench, wheels, "radtdemo==2.0", name="shared/base.txt")
    second = bench.build("uv")
    assert "radtdemo==1.0" in first.packages
    assert "radtdemo==2.0" in second.packages
    assert len(bench.built) == 2


def test_a_changed_local_package_makes_another_environment(bench: Workbench, wheels: Path) -> None:
    bench.write("requirements.txt", "./radtdemo-1.0-py3-none-any.whl\n")
    make_wheel(bench.folder, "radtdemo", "1.0", "VERSION = 'first'")
    script = bench.write("train.py", "import radtdemo; print(radtdemo.VERSION)")
    assert run(bench.build("uv"), bench.launch(str(script))) == "first"
    make_wheel(bench.folder, "radtdemo", "1.0", "VERSION = 'second'")
    assert run(bench.build("uv"), bench.launch(str(script))) == "second"


def test_mlflows_python_env(bench: Workbench, wheels: Path) -> None:
    make_wheel(wheels, "radtbuild", "0.1")
    requirements(bench, wheels, "radtdemo==2.0")
    version = ".".join(map(str, sys.version_info[:2]))
    bench.write(
        "python_env.yaml",
        f'python: "{version}"\n'
        "build_dependencies:\n  - ./../wheels/radtbuild-0.1-py3-none-any.whl\n"
        "dependencies:\n  - -r requirements.txt\n",
    )
    built = bench.build("uv:python_env.yaml")
    assert built.packages.splitlines()[1:] == ["radtbuild==0.1", "radtdemo==2.0"]


def test_a_python_that_is_not_there_is_named(bench: Workbench) -> None:
    bench.write("python_env.yaml", 'python: "3.1.99"\n')
    with pytest.raises(EnvironmentBuildError, match=r"3\.1\.99"):
        bench.build("uv")


def test_a_conda_file_given_to_uv_is_recognised(bench: Workbench) -> None:
    bench.write("env.yaml", "channels: [conda-forge]\ndependencies: [python]\n")
    with pytest.raises(EnvironmentBuildError, match="conda:FILE"):
        bench.build("uv:env.yaml")


def test_a_project_without_a_lock(bench: Workbench, wheels: Path) -> None:
    bench.write(
        "pyproject.toml",
        '[project]\nname = "x"\nversion = "0"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["radtdemo"]\n[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n',
    )
    assert "radtdemo==2.0" in bench.build("uv").packages


def test_a_lock_is_followed_to_the_letter(bench: Workbench, wheels: Path) -> None:
    newest = wheels / "radtdemo-2.0-py3-none-any.whl"
    hidden = newest.rename(wheels.parent / newest.name)
    bench.write(
        "pyproject.toml",
        '[project]\nname = "x"\nversion = "0"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["radtdemo"]\n[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n',
    )
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "lock"], cwd=bench.folder, check=True, capture_output=True)
    lock = (bench.folder / "uv.lock").read_bytes()
    hidden.rename(newest)
    built = bench.build("uv")
    assert "radtdemo==1.0" in built.packages
    assert (bench.folder / "uv.lock").read_bytes() == lock
    assert not (bench.folder / ".venv").exists()


def test_what_uv_says_when_it_fails_is_told_and_kept(bench: Workbench, wheels: Path) -> None:
    requirements(bench, wheels, "radtdemo==9.9")
    with pytest.raises(EnvironmentBuildError) as caught:
        bench.build("uv")
    assert "radtdemo==9.9" in caught.value.message
    assert str(bench.log) in (caught.value.remedy or "")
    assert caught.value.log == str(bench.log)
    assert "radtdemo==9.9" in bench.log.read_text(encoding="utf-8")
    assert bench.built == []


def test_without_uv_it_is_said_how_to_get_it(
    bench: Workbench, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("requirements.txt", "")
    monkeypatch.setattr("sys.executable", str(tools.folder / "python"))
    monkeypatch.setenv("HOME", str(tools.folder))
    monkeypatch.setenv("PATH", str(tools.folder))
    with pytest.raises(EnvironmentBuildError, match="pip install uv"):
        bench.build("uv")


def test_an_environment_whose_python_was_removed_is_built_again(
    bench: Workbench, wheels: Path
) -> None:
    requirements(bench, wheels, "radtdemo")
    built = bench.build("uv")
    assert built.interpreter is not None
    built.interpreter.unlink()
    built.interpreter.symlink_to("/nowhere/python3")
    again = bench.build("uv")
    assert again == built
    assert built.interpreter.exists()


def test_pips_settings_hold_for_uv(
    bench: Workbench, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bench.write("pip.conf", f"[global]\nno-index = true\nfind-links = {wheels} /nowhere\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    bench.write("requirements.txt", "radtdemo\n")
    assert "radtdemo==2.0" in bench.build("uv").packages
    assert "no-index" not in bench.log.read_text().replace("--no-index", "")


def test_indexes_of_pip_are_searched_as_pip_does() -> None:
    config = PipConfig(
        {"index-url": "https://me:p@own/simple", "extra-index-url": "\nhttps://a\nb"}
    )
    assert config.uv_variables({}) == {
        "UV_DEFAULT_INDEX": "https://me:p@own/simple",
        "UV_EXTRA_INDEX_URL": "https://a b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert config.uv_variables({"UV_INDEX_URL": "u", "UV_INDEX": "v"}) == {}


def test_a_launch_carries_the_environment_along(bench: Workbench, wheels: Path) -> None:
    requirements(bench, wheels)
    built = bench.build("uv")
    script = bench.write(
        "train.sh",
        'echo "$VIRTUAL_ENV"; command -v python; python -c "import sys; print(sys.prefix)"',
    )
    lines = run(built, bench.launch("/bin/sh", str(script), python=False)).splitlines()
    assert len({Path(line.removesuffix("/bin/python")) for line in lines}) == 1
    assert built.interpreter == Path(lines[1])


def test_a_value_on_the_search_path_stays(bench: Workbench, wheels: Path) -> None:
    requirements(bench, wheels)
    extra = bench.write("lib/helper.py", "NAME = 'helper'").parent
    script = bench.write("train.py", "import helper, radt; print(helper.NAME)")
    launch = bench.launch(str(script))
    variables = {**launch.variables, "PYTHONPATH": str(extra), "PYTHONHOME": "/nowhere"}
    built = bench.build("uv")
    assert run(built, bench.launch(str(script), variables=variables)) == "helper"


def test_local_is_radts_own_interpreter(bench: Workbench) -> None:
    built = bench.build("")
    launch = bench.launch("train.py", "--lr", "0.1")
    assert built.command(launch) == [sys.executable, "train.py", "--lr", "0.1"]
    assert built.variables(launch) == {}
    assert built.kill_command(launch) is None
    assert built.packages == ""
    assert not bench.log.exists()
    assert not bench.cache.exists()


def test_a_local_command_finds_a_python_where_path_has_none(
    bench: Workbench, tmp_path: Path
) -> None:
    built = bench.build("local")
    launch = bench.launch("bash", python=False, variables={"PATH": str(tmp_path)})
    assert shutil.which("python", path=built.variables(launch)["PATH"]) is not None
    own = bench.launch("bash", python=False, variables={"PATH": str(Path(sys.executable).parent)})
    assert built.variables(own) == {}
