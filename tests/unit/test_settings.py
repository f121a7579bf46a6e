"""Settings: which place counts, what is refused, what `radt config` shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radt import api, settings
from radt.collector.start import CollectorSettings, problems
from radt.collocation.busy import BusyPolicy
from radt.errors import UsageError
from radt.home import HOME_VARIABLE, RUNTIME_VARIABLE, TRACKING_VARIABLE, Home
from radt.lifetime import Wait
from radt.run.target import MODE_VARIABLE
from radt.runner.options import StartOptions, SyncPoint
from radt.settings import Setting, SettingLevel, Settings
from radt.store.locate import Places
from radt.units import duration_text, parse_duration_s, seconds_text
from tests.support.command import printed
from tests.support.waiting import wait_until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, which is the current one; no variable of radt is set."""
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for setting in settings.SETTINGS:
        for variable in setting.variables:
            if variable != RUNTIME_VARIABLE:
                monkeypatch.delenv(variable, raising=False)
    return folder


def write(folder: Path, text: str, name: str = "radt.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_nearest_place_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(given: str | None = None) -> tuple[int, SettingLevel]:
        one = Settings.of(project, {settings.REPEAT: given}).find(settings.REPEAT)
        return one.value, one.level

    assert found() == (1, SettingLevel.DEFAULT)
    write(project.parent, "[tool.radt]\nrepeat = 2\n", "pyproject.toml")
    assert found() == (2, SettingLevel.FILE)
    write(project, "repeat = 3\n")
    assert found() == (3, SettingLevel.FILE)
    monkeypatch.setenv("RADT_REPEAT", "")
    assert found() == (3, SettingLevel.FILE), "an empty variable is none"
    monkeypatch.setenv("RADT_REPEAT", "4")
    assert found() == (4, SettingLevel.VARIABLE)
    assert found("5") == (5, SettingLevel.COMMAND_LINE)


#: A value of each setting as a file, a variable or the command line may have it, and what it is.
VALUES: list[tuple[Setting[Any], object, str, object]] = [
    (settings.HOME, "data", "data", "data"),
    (settings.TRACKING_URI, "http://mlflow", "http://mlflow", "http://mlflow"),
    (settings.STORE_URI, "postgres://db/x", "postgresql://db/x", "postgresql+psycopg2://db/x"),
    (settings.REPEAT, 3, "3", 3),
    (settings.COOLDOWN, 90, "1min 30s", 90.0),
    (settings.WAIT_FOR_FILE, "2min", "120s", 120.0),
    (settings.MAX_TIME, "2h", "7200", 7200.0),
    (settings.MAX_EPOCH, 5, "5", 5),
    (settings.IGNORED_PARAMS, "seed, tag", "seed, tag", "seed, tag"),
    (settings.SYNC, "context", "Context", "context"),
    (settings.FAIL_FAST, True, "yes", True),
    (settings.BUSY, "ignore", "ignore", "ignore"),
    (settings.NOTIFY, "notify-send radt", "notify-send radt", "notify-send radt"),
    (settings.ON, "slurm:gpu", " slurm:gpu", "slurm:gpu"),
    (settings.YES, True, "1", True),
    (settings.WAIT, True, "1", True),
    (settings.QUIET, True, "on", True),
]


def test_every_option_is_tried() -> None:
    assert [setting for setting, *_ in VALUES] == list(settings.OPTIONS)


@pytest.mark.parametrize(
    ("setting", "in_file", "as_text", "value"), VALUES, ids=[one[0].name for one in VALUES]
)
def test_each_option_is_set_by_file_variable_and_command_line(
    project: Path, setting: Setting[Any], in_file: object, as_text: str, value: object
) -> None:
    expected = project / "data" if setting is settings.HOME else value
    assert Settings.of(project, environ={})[setting] != expected
    assert Settings.of(project, environ={setting.variables[0]: as_text})[setting] == expected
    assert Settings.of(project, {setting: as_text}, environ={})[setting] == expected
    write(project, f"{setting.name} = {json.dumps(in_file)}\n")
    assert Settings.of(project, environ={})[setting] == expected


def test_options_of_a_start_are_what_the_settings_say(project: Path) -> None:
    nothing = StartOptions.of(Settings.of(project, environ={}))
    home = nothing.home
    assert nothing == StartOptions(home=home, tracking_uri=home.default_tracking_uri)
    write(
        project,
        "".join(f"{setting.name} = {json.dumps(value)}\n" for setting, value, *_ in VALUES),
    )
    assert StartOptions.of(
        Settings.of(project, environ={}), rerun=True, only=("a",), devices="cpu"
    ) == StartOptions(
        rerun=True,
        only=("a",),
        devices="cpu",
        repeat=3,
        cooldown_s=90.0,
        wait_for_file_s=120.0,
        max_time_s=7200.0,
        max_epoch=5,
        sync=SyncPoint.CONTEXT,
        fail_fast=True,
        busy=BusyPolicy.IGNORE,
        notify="notify-send radt",
        yes=True,
        wait=Wait.MUST,
        quiet=True,
        home=Home(project / "data"),
        tracking_uri="http://mlflow",
        store_uri="postgresql+psycopg2://db/x",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("repeat = 0", "repeat: expected a whole number of at least 1, got '0'"),
        ("repeat = true", "repeat: True is not a valid value"),
        ("repeat = [1]", "repeat: [1] is not a valid value"),
        ("cooldown = 'soon'", "cooldown: 'soon' is not a length of time"),
        ("cooldown = -1", "cooldown: '-1' is not a length of time"),
        ("cooldown = nan", "cooldown: 'nan' is not a length of time"),
        ("max-time = 0", "max-time: a limit of 0 leaves no time"),
        ("sync = 'contxt'", "sync: 'contxt' is not one of start, context"),
        ("fail-fast = 'maybe'", "fail-fast: 'maybe' is neither on nor off"),
        ("fail-fast = 1.5", "fail-fast: 1.5 is not a valid value"),
        ("home = 3", "home: 3 is not a valid value"),
        ("repeats = 3", "unknown setting 'repeats'"),
        ("runtime-dir = 'x'", "unknown setting 'runtime-dir'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_and_key(
    project: Path, line: str, message: str
) -> None:
    path = write(project, f"{line}\n[models]\nresnet = 'train.py'\n")
    with pytest.raises(UsageError) as caught:
        Settings.of(project, environ={}).check()
    assert caught.value.message == f"{path}: {message}"
    assert caught.value.remedy


def test_who_has_a_store_in_the_settings_can_do_without_it(project: Path) -> None:
    write(project, "store-uri = 'postgresql://db/x'\n")
    values = Settings.of(project, environ={settings.STORE_URI.variables[0]: "None"})
    values.check()
    assert Home(project).store_uri(StartOptions.of(values).store_uri) == ""
    assert Places.of(project, "none").shared is None
    assert Places.of(None, "none").stores


def test_a_bad_value_further_away_does_not_matter(project: Path) -> None:
    write(project, "repeat = 'x'\n")
    assert Settings.of(project, environ={"RADT_REPEAT": "2"})[settings.REPEAT] == 2
    with pytest.raises(UsageError, match=r"RADT_REPEAT: .*got 'two'"):
        _ = Settings.of(project, environ={"RADT_REPEAT": "two"})[settings.REPEAT]


def test_paths_of_a_file_start_at_its_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "home = '../data'\ntracking-uri = 'sqlite:///db/mlflow.db'\n")
    below = project / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert Home.resolve().path.resolve() == project.parent / "data"
    assert Home.resolve().tracking_uri() == f"sqlite:///{project}/db/mlflow.db"
    odd = project / "100% ?#"
    odd.mkdir()
    write(odd, "tracking-uri = 'sqlite:///a%20b.db?timeout=5'\n")
    monkeypatch.chdir(odd)
    assert Home.resolve().tracking_uri() == f"sqlite:///{project}/100%25 %3F%23/a%20b.db?timeout=5"
    monkeypatch.chdir(below)
    monkeypatch.setenv(TRACKING_VARIABLE, "sqlite:////elsewhere.db")
    monkeypatch.setenv(HOME_VARIABLE, "here")
    assert Home.resolve().path == below / "here"
    assert Home.resolve().tracking_uri() == "sqlite:////elsewhere.db"


def test_a_broken_file_does_not_break_training(project: Path) -> None:
    """A script says so once and goes on with the default; the command line refuses."""
    write(project, "home = \n")
    script = (
        "import radt, sys\n"
        "with radt.Run(listeners='none') as run: run.log_metric('x', 1)\n"
        "with radt.Run(listeners='none') as run: run.log_metric('x', 2)\n"
        "assert 'mlflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("radt.toml is not TOML") == 1
    # On a busy machine the collector makes the store after the script has ended.
    wait_until((project / "radt-data" / "radt.db").exists, "the store")
    write(project, "File\nx.py\n", "e.csv")
    for arguments in (["report", "x"], ["e.csv"], ["config"], ["x.py"], ["status", "e.csv"]):
        assert "radt.toml is not TOML" in printed(project, *arguments, code=2)


def test_a_script_alone_records_where_the_file_says(project: Path) -> None:
    write(project, "[tool.radt]\nhome = 'elsewhere'\n", "pyproject.toml")
    below = project / "below"
    below.mkdir()
    script = "import radt\nwith radt.Run(listeners='none') as run: run.log_metric('x', 1)\n"
    subprocess.run([sys.executable, "-c", script], cwd=below, check=True, timeout=180)
    # On a busy machine the collector makes the store after the script has ended.
    wait_until((project / "elsewhere" / "radt.db").exists, "the store")
    assert not (below / "radt-data").exists()


def test_importing_radt_reads_no_settings(project: Path) -> None:
    write(project, "home = \n")
    code = "import radt, sys; print('tomllib' in sys.modules, 'radt.settings' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_config_shows_each_value_and_where_it_is_from(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "repeat = 3\nnotify = 'https://hooks.example.org/T0/secret'\n")
    monkeypatch.setenv("RADT_TRACKING_URI", "https://me:password@mlflow.example.org")
    monkeypatch.setenv("RADT_DASHBOARD_TOKEN", "token-of-mine")
    text = printed(project, "config", code=0)
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["repeat"] == ["radt.toml", "3"]
    assert lines["notify"] == ["radt.toml", "https://hooks.example.org/***"]
    assert lines["tracking-uri"] == ["RADT_TRACKING_URI", "https://***@mlflow.example.org"]
    assert lines["RADT_DASHBOARD_TOKEN"] == ["RADT_DASHBOARD_TOKEN", "***"]
    assert lines["cooldown"] == ["default", "0", "s"]
    as_json = printed(project, "config", "--json", code=0)
    for secret in ("secret", "password", "token-of-mine"):
        assert secret not in text + as_json
    assert {one["name"] for one in json.loads(as_json)["settings"]} >= {
        setting.name for setting in settings.OPTIONS
    }
    below = write(project / "below", "File\nx.py\n", "e.csv")
    write(below.parent, "repeat = 7\n")
    assert "7" in printed(project, "config", str(below), code=0)


def test_config_shows_every_problem(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "repeat = 'x'\nsync = 'y'\n")
    monkeypatch.setenv("RADT_FLUSH_S", "often")
    text = printed(project, "config", code=2)
    assert text.count("not valid") == 3
    for part in (
        "repeat: expected a whole number of at least 1, got 'x'",
        "sync: 'y'",
        "RADT_FLUSH_S: expected a number of at least 0, got 'often'",
    ):
        assert part in text


def test_one_parser_reads_the_collector_s_variables(caplog: pytest.LogCaptureFixture) -> None:
    given = {"RADT_FLUSH_S": "fast", "RADT_COLLECTOR_BUFFER": "90", "RADT_COLLECTOR_HANG_S": "0.5"}
    assert problems(given) == [
        "RADT_FLUSH_S: expected a number of at least 0, got 'fast'. Write such as 10 or 0.5"
    ]
    collector = CollectorSettings.from_environment(given)
    assert (collector.flush_s, collector.buffered_points, collector.hang_s) == (1.0, 90, 0.5)
    assert "RADT_FLUSH_S" in caplog.text
    for setting, variable in (
        (settings.HOME, HOME_VARIABLE),
        (settings.TRACKING_URI, TRACKING_VARIABLE),
        (settings.RUNTIME_DIR, RUNTIME_VARIABLE),
        (settings.MODE, MODE_VARIABLE),
    ):
        assert setting.variables[0] == variable


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10min", 600), ("10 MIN", 600), ("1h30m", 5400), ("250ms", 0.25)],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@given(st.floats(min_value=0, allow_infinity=False, allow_nan=False))
@example(1_000_000.0)
@example(1_209_600.0)
@example(1e-7)
@example(1e22)
def test_seconds_are_written_exactly(seconds: float) -> None:
    assert parse_duration_s(f"{seconds_text(seconds)} s") == seconds
    assert parse_duration_s(seconds_text(seconds)) == seconds


@given(st.floats(min_value=0, max_value=1e12))
@example(1e-7)
@example(90.1)
@example(1e6 * 86400)
def test_lengths_of_time_are_read_as_they_are_shown(seconds: float) -> None:
    assert parse_duration_s(duration_text(seconds)) == pytest.approx(seconds, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("text", ["", "s", "1x", "1h30", "-1", "1e3", "inf", "1 2", "9" * 400])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="not a length of time"):
        parse_duration_s(text)


def test_options_of_python_are_those_of_the_command_line(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_WAIT", "on")
    given = api._texts(
        {"wait": False, "cooldown_s": 1.5, "max_epoch": None, "sync": SyncPoint.CONTEXT}
    )
    options = StartOptions.of(Settings.of(project, given))
    assert options.wait is Wait.NO
    assert (options.cooldown_s, options.max_epoch, options.sync) == (1.5, None, SyncPoint.CONTEXT)
