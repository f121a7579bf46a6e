"""A selftest has a place of its own, and leaves nothing, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from radt.errors import LaunchError, UsageError
from radt.selftest.janitor import DATA_PREFIX, LOCK_NAME, processes_of
from radt.selftest.shelter import sheltered
from tests.support.bench import wait_until

#: Starts a collector in a shelter, says where it is, and stays.
PROGRAM = """\
import sys
from pathlib import Path
from radt.selftest.shelter import sheltered
connect = "from radt.collector.client import CollectorClient; CollectorClient.connect().close()"
with sheltered(Path(sys.argv[1])) as shelter:
    shelter.run([sys.executable, "-P", "-c", connect])
    print(shelter.home.path, shelter.runtime, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_nothing_is_left(tmp_path: Path, number: signal.Signals | None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "radt-data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    data, runtime = map(Path, process.stdout.readline().split())
    assert data.parent == tmp_path
    assert len(processes_of(runtime)) >= 2  # guardian and worker
    if number is not None:
        process.send_signal(number)
    process.communicate()
    wait_until(lambda: not data.exists() and not runtime.exists(), "folders are gone", 30.0)
    assert processes_of(runtime) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_users_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADT_STORE_URI", "postgresql://somebody@db.example.org/radt")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    monkeypatch.setenv("RADT_RUN_ID", "a-run-of-the-users")
    monkeypatch.setenv("RADT_FLUSH_S", "2")  # what changes the cost holds
    (tmp_path / "radt.toml").write_text('store-uri = "postgresql://x@y/z"\n', encoding="utf-8")
    program = (
        "import json; from radt.home import Home, runtime_dir; home = Home.resolve(); "
        "uri = home.tracking_uri(); import os; print(json.dumps({'home': str(home.path), "
        "'tracking': uri, 'store': home.store_uri(tracking_uri=uri), 'run': "
        "os.environ.get('RADT_RUN_ID'), 'runtime': str(runtime_dir()), "
        "'flush': os.environ['RADT_FLUSH_S']}))"
    )
    with sheltered(tmp_path / "radt-data") as shelter:
        import json

        seen = json.loads(shelter.run([sys.executable, "-P", "-c", program]).stdout)
        assert seen == {
            "home": str(shelter.home.path),
            "tracking": shelter.home.default_tracking_uri,
            "store": "",
            "run": None,
            "runtime": str(shelter.runtime),
            "flush": "2",
        }
        assert str(shelter.runtime) != os.environ["RADT_RUNTIME_DIR"]
        assert shelter.home.path.parent == tmp_path  # on the same disk
    assert not (tmp_path / "radt-data").exists()


def test_in_the_data_folder_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "radt-data").mkdir()
    with sheltered(tmp_path / "radt-data") as shelter:
        assert shelter.home.path.parent == tmp_path / "radt-data"
    assert list((tmp_path / "radt-data").iterdir()) == []


def test_folders_of_a_reset_machine_are_removed_and_others_stay(tmp_path: Path) -> None:
    forgotten = tmp_path / f"{DATA_PREFIX}forgotten"
    forgotten.mkdir()
    (forgotten / LOCK_NAME).touch()
    other = tmp_path / f"{DATA_PREFIX}without-lock"
    other.mkdir()
    with sheltered(tmp_path) as first:
        assert not forgotten.exists()
        with sheltered(tmp_path) as second:
            assert first.home.path != second.home.path
        assert first.home.path.exists()
    assert list(tmp_path.iterdir()) == [other]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="cannot be written"), sheltered(file / "radt-data"):
        pass


def test_what_fails_says_what_it_said(tmp_path: Path) -> None:
    with sheltered(tmp_path) as shelter:
        with pytest.raises(LaunchError, match="ended with exit code 3: what is wrong"):
            shelter.run([sys.executable, "-c", "import sys; print('what is wrong'); sys.exit(3)"])
        log = shelter.runtime / "collector.log"  # it will be gone
        log.write_text("first\nthe disk is full\n", encoding="utf-8")
        with pytest.raises(LaunchError, match=r"ends with: the disk is full"):
            shelter.run([sys.executable, "-c", "import sys; sys.exit(3)"])
        with pytest.raises(LaunchError, match="longer than 1 s"):
            shelter.run([sys.executable, "-c", "input = __import__('time').sleep(60)"], timeout_s=1)
        with pytest.raises(LaunchError, match="cannot be started"):
            shelter.run([str(tmp_path / "nothing")])
    assert not list(Path(tempfile.gettempdir()).glob(f"{shelter.runtime.name}*"))
