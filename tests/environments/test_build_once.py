"""A content is built once on a machine, whoever asks, and half of one never counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radt.environments.cache import cache_folder
from radt.environments.tool import BuildReport, run_tool
from radt.errors import EnvironmentBuildError
from tests.support.bench import alive, wait_until
from tests.support.environments import Tools, Workbench

WAITING = "dependencies: [python]\n# wait-for-the-test\n"

BUILD = """
import sys
from pathlib import Path
from radt.environments.build import build
from radt.environments.spec import parse_environment
spec = parse_environment("conda", Path(sys.argv[1]), {})
build(spec, log=Path(sys.argv[2]), say=lambda text: print(text, flush=True))
"""


@pytest.fixture
def builder(bench: Workbench, tools: Tools) -> Iterator[Workbench]:
    """A project whose build waits until the test lets it go on; no builder outlives a test."""
    tools.install("conda")
    bench.write("conda.yaml", WAITING)
    try:
        yield bench
    finally:
        go(tools)  # a tool whose radt was killed
        for process in STARTED:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        STARTED.clear()


STARTED: list[subprocess.Popen[str]] = []


def start_building(bench: Workbench) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(bench.folder), str(bench.log)],
        stdout=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def wait_for_tool(tools: Tools) -> int:
    """Until the fake stands in the middle of a build; its process."""
    file = tools.state / "building"
    wait_until(lambda: file.exists() and file.read_text(), "the tool builds")
    return int(file.read_text())


def go(tools: Tools) -> None:
    (tools.state / "go").touch()


def test_two_processes_at_once_build_once(builder: Workbench, tools: Tools) -> None:
    first = start_building(builder)
    wait_for_tool(tools)
    second = start_building(builder)
    assert second.stdout is not None
    assert "waiting for another radt that builds this environment" in second.stdout.readline()
    go(tools)
    assert (first.wait(), second.wait()) == (0, 0)
    first.communicate()
    second.communicate()
    assert len(tools.calls()) == 1
    assert len(builder.built) == 1


def test_many_threads_at_once_build_once(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("conda.yaml", "dependencies: [python]\n")
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: bench.build("conda"), range(8)))
    assert all(one == built[0] for one in built)
    assert len(tools.calls()) == 1


def test_a_killed_build_is_done_again(builder: Workbench, tools: Tools) -> None:
    first = start_building(builder)
    tool = wait_for_tool(tools)
    first.kill()
    first.communicate()
    os.kill(tool, signal.SIGKILL)
    (half,) = builder.built
    go(tools)
    (half / "rest-of-the-killed-build").touch()
    assert "python==" in builder.build("conda").packages
    assert builder.built == [half]
    assert not (half / "rest-of-the-killed-build").exists()
    assert len(tools.calls()) == 2


def test_a_tool_whose_radt_was_killed_keeps_others_out(builder: Workbench, tools: Tools) -> None:
    first = start_building(builder)
    tool = wait_for_tool(tools)
    first.kill()
    first.communicate()
    assert alive(tool)
    second = start_building(builder)
    assert second.stdout is not None
    assert "waiting for another radt that builds this environment" in second.stdout.readline()
    assert len(tools.calls()) == 1
    go(tools)  # the orphan ends, and what it has built does not count
    second.communicate()
    assert second.returncode == 0
    assert len(tools.calls()) == 2


def test_a_cancelled_build_leaves_nothing(builder: Workbench, tools: Tools) -> None:
    with pytest.raises(EnvironmentBuildError, match="cancelled"):
        builder.build("conda", cancelled=lambda: (tools.state / "building").exists())
    assert not alive(wait_for_tool(tools))
    assert builder.built == []


def test_waiting_for_another_build_can_be_cancelled(builder: Workbench, tools: Tools) -> None:
    first = start_building(builder)
    wait_for_tool(tools)
    with pytest.raises(EnvironmentBuildError, match="cancelled"):
        builder.build("conda", cancelled=lambda: bool(builder.said))
    go(tools)
    first.communicate()
    assert first.returncode == 0
    assert len(builder.built) == 1


def test_a_failed_build_is_tried_again(bench: Workbench, tools: Tools) -> None:
    tools.install("conda")
    bench.write("conda.yaml", "dependencies: [python, no-such-package]\n")
    for _ in range(2):
        with pytest.raises(EnvironmentBuildError, match="no-such-package"):
            bench.build("conda")
        assert bench.built == []
    assert len(tools.calls()) == 2


def test_a_place_that_cannot_be_written_is_named(
    bench: Workbench, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.install("conda")
    bench.write("conda.yaml", "dependencies: [python]\n")
    monkeypatch.setenv("RADT_ENVIRONMENTS", str(bench.write("a-file", "")))
    with pytest.raises(EnvironmentBuildError, match=r"a-file.*RADT_ENVIRONMENTS") as caught:
        bench.build("conda")
    assert caught.value.log == str(bench.log)


def test_the_cache_is_where_xdg_says(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADT_ENVIRONMENTS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert cache_folder() == Path("/x/cache/radt/environments")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative, which the standard says to ignore")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder() == Path("/home/x/.cache/radt/environments")


# Tools -------------------------------------------------------------------------------------------


def report(tmp_path: Path) -> BuildReport:
    return BuildReport(tmp_path / "log", print, lambda: False)


def test_all_that_a_tool_says_is_in_the_log_but_no_password(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        print("one\\rtwo")
        print("get https://me:secret@host/x", file=sys.stderr)
        sys.stdout.write("last without an end \\N{SNOWMAN}")
        sys.exit(3)
    """)
    answer = run_tool([sys.executable, "-c", program], report(tmp_path))
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert answer.code == 3
    assert answer.output == "one\rtwo\nlast without an end \N{SNOWMAN}"
    assert set(answer.tail) == {
        "one", "two", "get https://***@host/x", "last without an end \N{SNOWMAN}"
    }  # fmt: skip
    assert all(line in log for line in answer.tail)
    assert "secret" not in log  # the command is there, too


def test_what_is_private_is_neither_logged_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radt.environments.tool._SAY_EVERY_S", 0.0)
    said: list[str] = []
    command = [sys.executable, "-c", "print('proxy.host')"]
    told = BuildReport(tmp_path / "log", said.append, lambda: False)
    assert run_tool(command, told, private=True).output == "proxy.host\n"
    assert said == []
    assert (tmp_path / "log").read_text() == ""
    run_tool(command, told)
    assert any("proxy.host" in text for text in said)


def test_cancelling_ends_children_that_ignore_the_first_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radt.environments.tool._GRACE_S", 0.2)
    pids = tmp_path / "pids"
    program = textwrap.dedent(f"""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        with open({str(pids)!r} + "~", "w") as file: file.write(f"{{os.getpid()}} {{child.pid}}")
        os.rename({str(pids)!r} + "~", {str(pids)!r})
        child.wait()
        print("child gone", flush=True)
        time.sleep(600)
    """)
    with pytest.raises(EnvironmentBuildError, match="cancelled"):
        run_tool(
            [sys.executable, "-c", program],
            BuildReport(tmp_path / "log", print, pids.exists),
        )
    wait_until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "all are gone")


def test_a_tool_that_leaves_a_daemon_with_its_output_is_not_waited_for(tmp_path: Path) -> None:
    program = "import subprocess; daemon = subprocess.Popen(['sleep', '600']); print(daemon.pid)"
    answer = run_tool([sys.executable, "-c", program], report(tmp_path))
    daemon = int(answer.output)
    assert answer.code == 0
    assert alive(daemon)
    os.kill(daemon, signal.SIGKILL)


def test_more_output_than_a_pipe_holds_does_not_block(tmp_path: Path) -> None:
    program = "import sys; print('x' * 3_000_000); print('y' * 3_000_000, file=sys.stderr)"
    answer = run_tool([sys.executable, "-c", program], report(tmp_path))
    assert len(answer.output) == 3_000_001
