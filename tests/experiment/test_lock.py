"""Two runners on one file, as real processes."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radt.errors import HeldError, UsageError
from radt.experiment.lock import ExperimentLock, shown_command

HOLD = """
import sys
from radt.experiment.lock import ExperimentLock
with ExperimentLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""

# Every process of it waits for the same instant, then tries once and says how it went.
RACE = """
import sys
from radt.errors import HeldError
from radt.experiment.lock import ExperimentLock
lock = ExperimentLock(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    try:
        lock.acquire()
    except HeldError:
        continue
    with open(sys.argv[2], "a+") as turns:
        turns.write("(")
        turns.flush()
        turns.write(")")
        turns.flush()
    lock.release()
"""


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "experiment.csv"
    path.write_text("File\ntrain.py\n")
    return path


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_second_is_refused_and_told_who_holds_it(file: Path) -> None:
    with holder(file) as process:
        with pytest.raises(HeldError) as caught:
            ExperimentLock(file).acquire()
        error = caught.value
        assert error.exit_code == 3
        assert f"process {process.pid} of " in error.message
        assert " since 20" in error.message
        assert error.remedy == f"Wait for it to end, or stop it: radt stop {shlex.quote(str(file))}"


def test_who_holds_it_can_be_asked_without_taking_it(file: Path) -> None:
    lock = ExperimentLock(file)
    assert lock.holder() is None
    with holder(file) as process:
        found = lock.holder()
        assert found is not None and found.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(180)
        assert lock.path.exists() and lock.holder() is None


def test_passwords_stay_out_of_the_lock_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["radt", "e.csv", "--tracking-uri=https://me:secret@host/x"])

    with ExperimentLock(file) as lock:
        text = lock.path.read_text()

    assert "secret" not in text and "https://***@host/x" in text


def test_webhooks_stay_out_of_the_lock_file() -> None:
    argv = ["/venv/bin/radt", "e.csv", "--notify", "https://hooks/T0/secret", "-q"]
    assert shown_command(argv) == "radt e.csv --notify '***' -q"
    assert shown_command(["x/radt/__main__.py", "--notify=https://secret"]) == "radt '--notify=***'"


def test_others_learn_what_the_holder_is_doing(file: Path, tmp_path: Path) -> None:
    only, home = ("a", "b ü"), tmp_path / "data"
    with ExperimentLock(file, home=home, rerun=True, only=only, repeat=3) as lock:
        found = lock.holder()
    assert found is not None
    assert (found.rerun, found.only, found.repeat) == (True, only, 3)
    assert found.home == str(home)


def test_the_file_that_the_output_goes_to_is_known(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "a log.txt"
    code = HOLD.replace('print("held", flush=True)', 'print("held", file=sys.stderr, flush=True)')
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None and process.stderr.readline() == "held\n"
        found = ExperimentLock(file).holder()
        process.kill()
    assert found is not None and found.log == str(log)
    with holder(file):  # its output is a pipe
        found = ExperimentLock(file).holder()
    assert found is not None and found.log == ""


def test_what_other_versions_have_written(file: Path) -> None:
    """Older ones wrote less, later ones may write more."""
    lock = ExperimentLock(file)
    written = {"pid": os.getpid(), "host": platform.node(), "user": "ann", "command": "radt e.csv"}
    written |= {"since": "2026-01-02T03:04:05+01:00"}
    for more in ({}, {"colour": "blue"}):
        lock.path.write_text(json.dumps(written | more))
        found = lock.holder()
        assert found is not None
        assert (found.user, found.started_ticks, found.only, found.repeat) == ("ann", 0, (), 1)
    for wrong in ({"repeat": "3"}, {"only": 3}, {"pid": True}, {"since": "today"}):
        lock.path.write_text(json.dumps(written | wrong))
        assert lock.holder() is None


def test_a_later_process_of_the_same_number_is_not_the_holder(file: Path) -> None:
    lock = ExperimentLock(file)
    with lock:
        mine = json.loads(lock.path.read_text())
        assert lock.holder() is not None
        lock.path.write_text(json.dumps(mine | {"started_ticks": mine["started_ticks"] - 1}))
        assert lock.holder() is None


def test_its_end_frees_it_and_leaves_nothing(file: Path) -> None:
    with holder(file) as process:
        process.communicate("", timeout=180)
        assert process.returncode == 0
    assert sorted(p.name for p in file.parent.iterdir()) == ["experiment.csv", "train.py"]

    with ExperimentLock(file):
        pass


def test_kill_9_frees_it(file: Path) -> None:
    with holder(file) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(180)
        lock = ExperimentLock(file)
        assert lock.path.exists()  # what it left does not matter

        with lock:
            assert f'"pid": {os.getpid()}' in lock.path.read_text()
    assert not lock.path.exists()


def test_children_of_the_holder_do_not_keep_it(file: Path) -> None:
    """A training process that outlives a killed runner must not hold the file."""
    code = (
        "import os, subprocess, sys\n"
        "from radt.experiment.lock import ExperimentLock\n"
        "ExperimentLock(sys.argv[1]).acquire()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.wait(180) == -signal.SIGKILL
        os.kill(child, 0)  # it lives

        with ExperimentLock(file):
            pass


def test_the_same_process_cannot_hold_it_twice(file: Path) -> None:
    with ExperimentLock(file), pytest.raises(HeldError, match=f"process {os.getpid()}"):
        ExperimentLock(file).acquire()


def test_a_link_is_the_same_file(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(file)

    with ExperimentLock(link), pytest.raises(HeldError):
        ExperimentLock(file).acquire()
    assert not list(tmp_path.glob(".*radt-lock"))


def test_other_files_of_the_folder_are_free(file: Path) -> None:
    with ExperimentLock(file), ExperimentLock(file.with_name("other.csv")):
        pass


def test_a_holder_that_has_not_signed_yet(file: Path) -> None:
    with ExperimentLock(file) as lock:
        for content in (
            "",
            "{",
            '{"pid": 1}',
            '{"pid":1,"host":"","user":"","since":"x","command":""}',
        ):
            lock.path.write_text(content)
            with pytest.raises(HeldError, match="by another radt"):
                ExperimentLock(file).acquire()


def test_only_one_at_a_time_while_locks_are_removed_and_made(file: Path, tmp_path: Path) -> None:
    """Removing the lock file must not let two in: one on the old file, one on the new."""
    turns = tmp_path / "turns"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(file), str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            process.communicate("go\n", timeout=180)
    finally:
        for process in processes:
            process.kill()

    assert [process.returncode for process in processes] == [0, 0, 0]
    entered = turns.read_text()
    assert entered == "()" * (len(entered) // 2)
    assert len(entered) > 100


def test_a_folder_that_takes_no_lock(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory") as caught:
        ExperimentLock(tmp_path / "missing" / "experiment.csv").acquire()
    assert str(tmp_path / "missing") in (caught.value.remedy or "")


def test_a_lock_file_that_was_removed_before_it_could_be_locked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder removes it between the other's opening and locking."""
    first, second = ExperimentLock(file), ExperimentLock(file)
    first.acquire()
    flock = fcntl.flock

    def release_first(descriptor: int, operation: int) -> None:
        first.release()
        flock(descriptor, operation)

    with monkeypatch.context() as context:
        context.setattr(fcntl, "flock", release_first)
        second.acquire()

    with pytest.raises(HeldError):
        ExperimentLock(file).acquire()
    second.release()
    assert not second.path.exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may write in; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="radt-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_another_users_killed_runner_left(open_folder: Path) -> None:
    """Both may write in the folder; the lock file of one is not writable for the other."""
    file = open_folder / "experiment.csv"
    file.write_text("File\ntrain.py\n")
    lock = ExperimentLock(file)
    lock.path.write_text("{}")
    lock.path.chmod(0o644)

    # What it needs is imported as root: Python itself may lie where nobody else can read.
    code = "import os, radt.experiment.lock; os.setuid(65534)\n" + HOLD
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        input="",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd="/",
    )

    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
    assert not lock.path.exists()


def test_what_another_user_left_is_removed_only_if_it_is_still_there(tmp_path: Path) -> None:
    """Meanwhile that user's next runner may have made a new lock file."""
    file = tmp_path / "experiment.csv"
    file.write_text("File\ntrain.py\n")
    late, next_one = ExperimentLock(file), ExperimentLock(file)
    late.path.write_text("{}")
    descriptor = os.open(late.path, os.O_RDONLY)
    late.path.unlink()
    with next_one:
        assert not late._try(descriptor, own=False)
        assert next_one.path.exists()
