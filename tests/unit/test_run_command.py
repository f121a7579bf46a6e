"""What of a command line is radt's own, and what is the program's."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from radt.cli import COMMANDS, GROUPS, group, main
from radt.cli.run import command
from radt.errors import UsageError


def understood(*args: str) -> tuple[str, tuple[str, ...], dict[str, object]]:
    """File, arguments, and the options that were given."""
    params = dict(command.make_context("run", list(args)).params)
    file, arguments = params.pop("file"), params.pop("arguments")
    given = {name: value for name, value in params.items() if value not in (None, "", False, ())}
    return file, arguments, given


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["e.csv"], ("e.csv", (), {})),
        (["e.YAML", "--rerun"], ("e.YAML", (), {"rerun": True})),
        (
            ["-q", "e.csv", "--repeat", "3", "-y"],
            ("e.csv", (), {"quiet": "True", "repeat": "3", "yes": "True"}),
        ),
        (["e.csv", "--only", "a,b", "--only", "c"], ("e.csv", (), {"only": ("a,b", "c")})),
        (["e.csv", "--keep-going", "--ask"], ("e.csv", (), {"fail_fast": "False", "yes": "False"})),
        (["--", "-e.csv"], ("./-e.csv", (), {})),
        (["train.py", "--rerun", "-q", "--", "x"], ("train.py", ("--rerun", "-q", "--", "x"), {})),
        (
            ["-d", "0", "-qn", "a b", "train.py", "-d", "1"],
            ("train.py", ("-d", "1"), {"devices": "0", "quiet": "True", "name": "a b"}),
        ),
        (["-d0", "--name=x", "train.py"], ("train.py", (), {"devices": "0", "name": "x"})),
        (["--name", "e.csv", "train.py"], ("train.py", (), {"name": "e.csv"})),
        (
            ["--cpus", "8", "--timeout", "1h", "./bin", "e.csv"],
            ("./bin", ("e.csv",), {"cpus": "8", "timeout": "1h"}),
        ),
        (["-m", "pkg.mod", "--lr", "1"], ("-m pkg.mod", ("--lr", "1"), {})),
        (["-n", "x", "--module=pkg", "-n", "y"], ("-m pkg", ("-n", "y"), {"name": "x"})),
        (["train.py", "-m", "x"], ("train.py", ("-m", "x"), {})),
        # radT 0.2
        (["-r", "e.csv"], ("e.csv", (), {"rerun": True})),
        (["--conda", "train.py", "--conda"], ("train.py", ("--conda",), {"environment": "conda"})),
        (["--local", "train.py"], ("train.py", (), {"environment": "local"})),
        (["--poll_interval", "2", "--manual", "--buffered", "e.csv"], ("e.csv", (), {})),
        (["e.csv", "--poll_interval=2", "--manual"], ("e.csv", (), {})),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_command_line_means(
    args: list[str], expected: tuple[str, tuple[str, ...], dict[str, object]]
) -> None:
    assert understood(*args) == expected


@pytest.mark.parametrize("args", [[], ["-q"], ["--repeat"], ["--nonsense", "train.py"], ["-m"]])
def test_what_cannot_be_understood(args: list[str]) -> None:
    with pytest.raises(click.UsageError):
        understood(*args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.csv", "b.csv"], "Expected one experiment file, got 'b.csv' after a.csv"),
        (["a.csv", "--cpus", "3"], "--cpus: only for programs"),
        (["--rerun", "x.py"], "--rerun and --only are for experiment files"),
        (["--detach", "x.py"], "--detach is for experiment files"),
        (
            ["a.csv", "--repeat", "none"],
            "--repeat: expected a whole number of at least 1, got 'none'",
        ),
        (["a.csv", "--cooldown", "soon"], "--cooldown: 'soon' is not a length of time"),
        (["a.csv", "--busy", "wate"], "--busy: 'wate' is not one of wait, fail, ignore"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_go_together(args: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        command.main(args, standalone_mode=False)
    assert message in caught.value.message
    assert caught.value.remedy


def test_a_misspelt_command_is_no_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["statsu", "experiment.csv"])
    assert ended.value.code == 2
    assert "Did you mean radt status?" in capsys.readouterr().err


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What an error of usage says."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "now"), [("-p", "after the script"), ("-i", "-l top@500ms"), ("-t", "--timeout")]
)
def test_what_radt_02_had_is_answered(
    capsys: pytest.CaptureFixture[str], option: str, now: str
) -> None:
    error = said(capsys, option, "3", "e.csv")
    assert f"{option} was an option of radT 0.2" in error and now in error
    assert "“From radT 0.2” in the documentation" in error


def test_what_became_of_an_accepted_option_is_told_once() -> None:
    done = CliRunner().invoke(command, ["--manual", "--local", "none.csv"])
    assert done.stderr.count("--manual of radT 0.2 is now: not needed") == 1
    assert "--environment: only for programs" in str(done.exception)


def test_radt_02s_name_of_trace_is_understood() -> None:
    done = CliRunner().invoke(group, ["export-trace", "--help"])
    assert " trace [OPTIONS] RUN" in done.output


def test_a_file_that_is_not_there_cannot_be_attached_to(capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, "attach", "none.csv")
    assert "Expected an experiment file, got none.csv, which does not exist" in error


def test_a_wrong_call_is_an_error_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "export") == "radt: Missing argument 'RUN'.\n  Run `radt export --help`\n"


def test_shells_complete_commands_options_and_files() -> None:
    completed = ShellComplete(group, {}, "radt", "_RADT_COMPLETE").get_completions
    assert [item.value for item in completed([], "st")] == ["status", "stop", "st"]
    assert completed([], "my")[-1].type == "file"
    assert [item.value for item in completed(["ls"], "--so")] == ["--sort"]


def test_help_groups_the_commands() -> None:
    lines = CliRunner(env={"COLUMNS": "80"}).invoke(group, ["--help"]).output.splitlines()
    heading, found = "", []
    for line in lines[lines.index("Run:") :]:
        heading = line.removesuffix(":") if line.endswith(":") else heading
        if line.startswith("  ") and line.split()[0] in COMMANDS:
            found.append((heading, line.split()[0]))
    assert found == [(name, each) for name, commands in GROUPS.items() for each in commands]


def test_help_of_run_fits_a_screen_and_more_stands_behind_it() -> None:
    short, full = (
        CliRunner(env={"COLUMNS": "80"}).invoke(command, [option]).output
        for option in ("--help", "--help-all")
    )
    assert len(short.splitlines()) <= 40
    assert "--help-all" in short and "--sync" not in short
    names = [name for param in command.params for name in param.opts if name.startswith("--")]
    assert [name for name in names if name not in full] == []
