"""conda environments, made by stand-ins for conda, mamba and micromamba."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from radt.errors import EnvironmentBuildError
from tests.support.environments import Tools, Workbench

FILE = "name: x\nchannels: [conda-forge]\ndependencies: [python, cuda-toolkit]\n"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("micromamba", "create --yes --prefix"),
        ("mamba", "env create --prefix"),
        ("conda", "env create --prefix"),
    ],
)
def test_each_tool_is_asked_in_its_way(
    bench: Workbench, tools: Tools, tool: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_OLD_CONDA", "1")
    tools.install("conda", tool)
    file = bench.write("conda.yaml", FILE)
    built = bench.build("conda")
    (folder,) = bench.built
    assert tools.calls() == [f"{tool} {words} {folder / 'env'} --file {file}"]
    assert built.interpreter == folder / "env/bin/python"


def test_micromamba_goes_before_mamba_and_mamba_before_conda(
    bench: Workbench, tools: Tools
) -> None:
    for number, tool in enumerate(["conda", "mamba", "micromamba"]):
        tools.install("conda", tool)
        bench.write("conda.yaml", f"{FILE}# {number}\n")
        bench.build("conda")
    assert [call.split()[0] for call in tools.calls()] == ["conda", "mamba", "micromamba"]


@pytest.mark.parametrize(
    ("variable", "tool"), [("CONDA_EXE", "conda"), ("MAMBA_EXE", "micromamba")]
)
def test_the_tool_of_an_activated_shell_is_found(
    bench: Workbench, tools: Tools, variable: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tools.install("conda", tool)
    monkeypatch.setenv("PATH", os.environ["PATH"].removeprefix(f"{tools.folder}:"))
    monkeypatch.setenv(variable, str(path))
    bench.write("conda.yaml", FILE)
    bench.build("conda")
    assert len(tools.calls()) == 1


def test_without_any_it_is_said_how_to_get_one(bench: Workbench, tools: Tools) -> None:
    bench.write("conda.yaml", FILE)
    with pytest.raises(EnvironmentBuildError, match=r"micromamba.*https://mamba\.readthedocs"):
        bench.build("conda")


def test_a_run_has_what_activating_would_set(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("conda.yaml", FILE)
    built = bench.build("conda")
    prefix = bench.built[0] / "env"
    script = bench.write(
        "show.py",
        "import os, radt, sys\n"
        "for name in 'CONDA_PREFIX', 'LD_LIBRARY_PATH', 'GDAL_DATA', 'FROM_FILE', 'SECRET':\n"
        "    print(os.environ[name])\n"
        "print(sys.prefix)\n",
    )
    launch = bench.launch(str(script))
    launch = bench.launch(
        str(script),
        variables={**launch.variables, "LD_LIBRARY_PATH": "/own/lib", "SECRET": "a b\nc=d"},
    )
    own = built.variables(launch)
    done = subprocess.run(
        built.command(launch),
        env={**launch.variables, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        str(prefix),
        f"{prefix}/lib:/own/lib",
        f"{prefix}/share/gdal",
        "declared",
        "a b",
        "c=d",
        str(prefix),
    ]
    assert "SECRET" not in own
    assert own["PATH"].startswith(f"{prefix}/bin:")
    assert not {"SHLVL", "PWD", "_"} & set(own)


def test_what_conda_has_installed_is_listed(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("conda.yaml", FILE)
    lines = bench.build("conda").packages.splitlines()
    assert lines[0].startswith("python==3")
    assert lines[-2:] == ["# conda", "cuda-toolkit=12.4=h5_0"]


def test_an_environment_without_python_runs_executables_only(
    bench: Workbench, tools: Tools
) -> None:
    tools.install("conda")
    file = bench.write("conda.yaml", "dependencies: [r-base]\n")
    built = bench.build("conda")
    assert built.interpreter is None
    assert built.command(bench.launch("/bin/true", python=False)) == ["/bin/true"]
    with pytest.raises(EnvironmentBuildError, match=f"has no Python.*{file}"):
        built.command(bench.launch("train.py"))
    assert bench.build("conda") == built
    assert len(tools.calls()) == 1


def test_files_of_the_pip_part_count(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("pinned.txt", "one==1\n")
    bench.write("conda.yaml", "dependencies:\n- python\n- pip:\n  - -r pinned.txt\n")
    bench.build("conda")
    bench.write("pinned.txt", "one==2\n")
    bench.build("conda")
    bench.build("conda")
    assert len(bench.built) == len(tools.calls()) == 2


def test_a_full_disk_says_where_to_make_room(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("conda.yaml", "dependencies: [python, disk-full]\n")
    with pytest.raises(EnvironmentBuildError, match="No space left on device") as caught:
        bench.build("conda")
    assert "RADT_ENVIRONMENTS" in (caught.value.remedy or "")
    assert bench.built == []


@pytest.mark.parametrize("text", ["dependencies: python\n", "- a list\n", ":\t{", ""])
def test_a_file_that_is_no_environment_starts_nothing(
    bench: Workbench, tools: Tools, text: str
) -> None:
    tools.install("conda")
    file: Path = bench.write("conda.yaml", text)
    with pytest.raises(EnvironmentBuildError, match=str(file)):
        bench.build("conda")
    assert tools.calls() == []
