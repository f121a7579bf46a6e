"""Which folder data are kept in, and which MLflow its runs go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.home import Home, runtime_dir
from radt.settings import HOME, Settings


@pytest.mark.parametrize(
    ("explicit", "radt", "mlflow", "expected"),
    [
        ("http://given", "http://radt", "http://mlflow", "http://given"),
        (None, "http://radt", "http://mlflow", "http://radt"),
        (None, None, "http://mlflow", "http://mlflow"),
        (None, "", "", "sqlite:////data/mlflow.db"),
        (None, "none", "http://mlflow", ""),
        ("None", "http://radt", None, ""),
    ],
)
def test_the_nearest_tracking_uri_counts(
    monkeypatch: pytest.MonkeyPatch,
    explicit: str | None,
    radt: str | None,
    mlflow: str | None,
    expected: str,
) -> None:
    for name, value in (("RADT_TRACKING_URI", radt), ("MLFLOW_TRACKING_URI", mlflow)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert Home(Path("/data")).tracking_uri(explicit) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~/data", "HOME/data"),
        ("~", "HOME"),
        ("~root/data", str(Path("~root/data").expanduser())),
        ("~nobody-has-this-name/data", "HERE/~nobody-has-this-name/data"),
        ("data/~", "HERE/data/~"),
    ],
)
def test_the_users_folder_is_expanded_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(expected.replace("HOME", str(tmp_path)).replace("HERE", str(here)))
    assert Home.resolve(text).path == Home.resolve(Path(text)).path == path
    monkeypatch.setenv("RADT_HOME", text)
    assert Home.resolve().path == Settings.of(here)[HOME] == path


def test_the_users_folder_is_expanded_for_the_runtime_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RADT_RUNTIME_DIR", "~/runtime")
    assert runtime_dir() == tmp_path / "runtime"


def test_an_absolute_folder_needs_no_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    assert Home.resolve(tmp_path).path == tmp_path


def test_a_script_goes_on_without_an_address_that_is_not_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RADT_STORE_URI", "mysql://db/radt")
    warnings: list[str] = []
    monkeypatch.setenv("RADT_TRACKING_URI", "postgresql://h/db")
    home = Home(Path("/data"))
    tracking_uri = home.tracking_uri(warn=warnings.append)
    # Recorded data is not written to a database that was not meant.
    assert home.store_uri(tracking_uri=tracking_uri, warn=warnings.append) == ""
    assert len(warnings) == 1
    assert (
        "a setting is not used: RADT_STORE_URI: 'mysql://db/radt' is not the address of a Postgres"
        in warnings[0]
    )
    with pytest.raises(UsageError, match="RADT_STORE_URI"):
        home.store_uri()
