"""Where Nsight's tools are found, and how they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.experiment.columns import parse_listener
from radt.listeners import nsight
from radt.listeners.api import ProfiledRun, Profiler, options_of
from radt.listeners.nsight import Ncu, NcuAttach, NcuRaw, Nsys, NsysRaw, find_tool
from radt.listeners.registry import load

ALL = (Nsys, NsysRaw, Ncu, NcuRaw, NcuAttach)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed."""
    monkeypatch.setattr(nsight, "_ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    find_tool.cache_clear()
    return tmp_path


def install(path: Path, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    find_tool.cache_clear()
    return str(path)


def profiled(root: Path, *options: str) -> ProfiledRun:
    return ProfiledRun("r", "e_1_a", root / "100%", options_of(options))


def words(profiler: Profiler, run: ProfiledRun) -> list[str]:
    return list(profiler.prefix(run))


@pytest.mark.parametrize("kind", ALL)
def test_what_is_not_there_says_so_and_how_to_get_it(kind: type[Profiler]) -> None:
    answer = kind.probe()

    assert not answer.available
    assert "neither on PATH nor in the usual folders" in answer.reason
    assert "https://developer.nvidia.com" in answer.remedy


def test_the_newest_of_the_usual_folders_after_path(root: Path) -> None:
    install(root / "opt/nvidia/nsight-compute/2026.2.0/ncu", mode=0o644)
    older = install(root / "opt/nvidia/nsight-compute/2025.10.1/ncu")
    assert words(Ncu(), profiled(root))[0] == older
    install(root / "opt/nvidia/nsight-compute/2025.9.1/ncu")
    assert words(Ncu(), profiled(root))[0] == older
    newest = install(root / "opt/nvidia/nsight-compute/2026.1.0/ncu")
    assert words(Ncu(), profiled(root))[0] == newest
    on_path = install(root / "bin/ncu")
    assert words(Ncu(), profiled(root))[0] == on_path
    assert Ncu.probe().available and not Nsys.probe().available
    cli = install(root / "opt/nvidia/nsight-systems-cli/2026.1.1/target-linux-x64/nsys")
    assert words(NsysRaw(), profiled(root))[0] == cli


def test_reports_are_named_after_the_run_and_percent_is_no_macro(root: Path) -> None:
    for profiler in (Nsys(), NsysRaw()):
        (output,) = (w for w in words(profiler, profiled(root)) if w.startswith("--output="))
        assert output == f"--output={root}/100%%/{profiler.name}_e_1_a"
    for compute in (Ncu(), NcuRaw()):
        asked = words(compute, profiled(root))
        assert asked[asked.index("--export") + 1] == f"{root}/100%%/{compute.name}_e_1_a"


def test_only_the_range_where_it_says_so(root: Path) -> None:
    run = profiled(root)
    assert "--nvtx-capture=profile" in words(Nsys(), run)
    assert Nsys().environment(run) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert "profile/" in words(Ncu(), run)  # with the slash: pushed and popped
    for raw in (NsysRaw(), NcuRaw(), NcuAttach()):
        assert not any("nvtx-" in word for word in words(raw, run))
        assert raw.environment(run) == {}


def test_options(root: Path) -> None:
    install(root / "bin/ncu")
    registry = load()
    assert words(NcuRaw(), profiled(root))[-1] == "100"
    choice = parse_listener("ncuraw:kernels=5", registry)
    assert words(NcuRaw(), profiled(root, *choice.options))[-1] == "5"
    choice = parse_listener("ncuattach:port=50000", registry)
    assert words(NcuAttach(), profiled(root, *choice.options))[-1] == "50000"
    assert "--port 50000 --export" in NcuAttach().notice(profiled(root, *choice.options))
    for wrong in ("ncuraw:kernels=0", "ncuraw:kernels=x", "ncuattach:port=80", "ncuattach:port=²"):
        with pytest.raises(UsageError):
            parse_listener(wrong, registry)


def test_what_they_say_of_themselves() -> None:
    found = load().profilers
    assert {kind.name for kind in ALL} <= set(found)
    assert all(found[kind.name] is kind for kind in ALL)
    assert all(kind.disturbs and kind.takes_gpu_counters for kind in ALL)
