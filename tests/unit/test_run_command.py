"""What of a command line is radt's own, and what is the program's."""

from __future__ import annotations

import click
import pytest

from radt.cli import main
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
        (["a.csv", "--cpus", "3"], "other column options are for programs"),
        (["--rerun", "x.py"], "--rerun and --only are for experiment files"),
        (["--detach", "x.py"], "--detach is for experiment files"),
        (
            ["a.csv", "--repeat", "none"],
            "--repeat: expected a whole number of at least 1, got 'none'",
        ),
        (["a.csv", "--cooldown", "soon"], "--cooldown: 'soon' is no length of time"),
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
