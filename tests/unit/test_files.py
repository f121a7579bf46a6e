"""Files that are replaced as a whole, locked and recognised (`radt.files`)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.files import (
    PidLock,
    create_whole,
    identity,
    is_open_at,
    lock,
    lock_byte,
    output_file,
    unlock_byte,
    whole_file,
    write_whole,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("before")
    return path


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_the_block_succeeds(file: Path, durable: bool) -> None:
    with whole_file(file, durable=durable) as temporary:
        temporary.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after"
    assert os.listdir(file.parent) == ["file"]


def test_a_failed_block_leaves_the_file_and_nothing_else(file: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_file(file) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert file.read_text() == "before"
    assert os.listdir(file.parent) == ["file"]


def test_a_folder_that_only_takes_files_is_not_synced(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def as_no_root(path: Path, flags: int, *mode: int) -> int:
        if path == file.parent:  # of mode 0300
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opening(path, flags, *mode)

    monkeypatch.setattr(os, "open", as_no_root)
    write_whole(file, "after", durable=True)
    assert file.read_bytes() == b"after"


def test_permissions_are_those_given_or_those_of_a_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "")
        write_whole(tmp_path / "private", b"", mode=0o600)
        with whole_file(tmp_path / "replaced") as temporary:
            temporary.unlink()
            os.close(os.open(temporary, os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "private": 0o600, "replaced": 0o640}


def test_a_named_temporary_file_takes_the_place_of_a_killed_writers(file: Path) -> None:
    left = file.with_name("left")
    left.write_text("half of an earlier one")
    with whole_file(file, temporary=left) as temporary:
        assert temporary == left
        assert temporary.read_text() == ""
    assert os.listdir(file.parent) == ["file"]


def test_the_first_of_several_writers_wins(tmp_path: Path) -> None:
    for content in ("first", "second"):
        create_whole(tmp_path / "file", content)
    assert (tmp_path / "file").read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_named_output_that_cannot_be_written_is_the_users(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="No such file or directory"),
        output_file(tmp_path / "missing" / "file"),
    ):
        pass


def test_a_lock_excludes_others_until_its_last_descriptor_is_closed(file: Path) -> None:
    with file.open() as first, file.open() as second:
        assert lock(first.fileno(), shared=True)
        assert lock(second.fileno(), shared=True)
        assert not lock(second.fileno())
        first.close()
        assert lock(second.fileno())


def test_bytes_of_a_file_are_locked_one_by_one(file: Path) -> None:
    with file.open("r+") as first, file.open("r+") as second:
        assert lock_byte(first.fileno(), 0)
        assert not lock_byte(second.fileno(), 0)
        assert lock_byte(second.fileno(), 1, shared=True)
        unlock_byte(first.fileno(), 0)
        assert lock_byte(second.fileno(), 0, wait=True)


def test_a_lock_says_who_holds_it(file: Path) -> None:
    pid_lock = PidLock(file)
    assert pid_lock.holder() is None
    code = (
        "import sys; from pathlib import Path; from radt.files import PidLock\n"
        "print(PidLock(Path(sys.argv[1])).acquire(), flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    assert pid_lock.holder() == other.pid
    assert not pid_lock.acquire()
    other.kill()
    other.communicate()
    assert pid_lock.holder() is None
    assert pid_lock.acquire()
    pid_lock.close()


def test_an_open_file_is_recognised_until_it_is_removed_or_closed(file: Path) -> None:
    with file.open() as opened:
        descriptor = opened.fileno()
        assert is_open_at(descriptor, file)
        assert identity(descriptor) is not None
        write_whole(file, "another")
        assert not is_open_at(descriptor, file)
        file.unlink()
        assert not is_open_at(descriptor, file)
    assert identity(descriptor) is None
