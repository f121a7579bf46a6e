"""Statuses reach the right row while the user edits, and never endanger the file."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from radt.errors import StatusError
from radt.experiment import files
from radt.experiment.status import RowStatus, StatusWriter

Write = Callable[[str | bytes], Path]

TWINS = "Workload,Status,Run,File\n1,,,train.py\n1,,,train.py\n1,,,train.py\n"


def test_a_file_of_models_gets_its_statuses(write: Write) -> None:
    path = write("Model,Status\nvit,\n")
    StatusWriter(path).set(2, "FINISHED")
    assert path.read_text() == "Model,Status\nvit,FINISHED\n"


def test_edits_made_meanwhile_stay_and_rows_are_found_where_they_went(write: Write) -> None:
    path = write("Name,Status,File,Params\na,,train.py,--x 1\nb,,train.py,--x 2\n")
    writer = StatusWriter(path)

    # Turned around, a column moved, a row, a comment and quotes added, and no last line end.
    path.write_text(
        'File,"Name",Params,Status,Run\n# mine\ntrain.py,b,"--x 2",mine,\n'
        "train.py,c,--x 3,TODO,\ntrain.py,a,--x 1,,"
    )
    writer.set_many({2: RowStatus("FINISHED", "id-a"), 3: RowStatus("RUNNING", "id-b")})

    assert path.read_text() == (
        'File,"Name",Params,Status,Run\n# mine\ntrain.py,b,"--x 2",RUNNING,id-b\n'
        "train.py,c,--x 3,TODO,\ntrain.py,a,--x 1,FINISHED,id-a"
    )


def test_a_row_that_is_cut_short_meanwhile_gets_its_status_when_it_is_whole(write: Write) -> None:
    path = write("File,Params,Status,Run\ntrain.py,--x 1,,\n")
    writer = StatusWriter(path)

    path.write_text("File,Params,Status,Run\ntrain.py,--x 1\n")
    with pytest.raises(StatusError, match="a row with too few cells in line 2"):
        writer.set(2, "FINISHED", "id-a")
    path.write_text("File,Params,Status,Run\ntrain.py,--x 1,,\n")
    writer.flush()

    assert path.read_text() == "File,Params,Status,Run\ntrain.py,--x 1,FINISHED,id-a\n"


def test_twins_keep_their_order_when_lines_move(write: Write) -> None:
    path = write(TWINS)
    writer = StatusWriter(path)

    path.write_text("# a new first line\n" + TWINS)
    writer.set(3, "FAILED: x", "second")
    writer.set(4, "FINISHED", "third")

    assert path.read_text() == (
        "# a new first line\nWorkload,Status,Run,File\n"
        "1,,,train.py\n1,FAILED: x,second,train.py\n1,FINISHED,third,train.py\n"
    )


def test_a_copied_row_is_told_apart_by_its_run(write: Write) -> None:
    path = write(TWINS)
    writer = StatusWriter(path)
    writer.set(3, "RUNNING", "second")

    path.write_text(path.read_text().replace("Run,File\n", "Run,File\n1,,,train.py\n"))
    writer.set(3, "FINISHED")

    assert path.read_text().splitlines()[3] == "1,FINISHED,second,train.py"
    with pytest.raises(StatusError, match="line 2: RUNNING"):  # which of two it was is not known
        writer.set(2, "RUNNING", "first")


def test_a_changed_row_is_given_up_and_the_others_are_written(write: Write) -> None:
    path = write("File,Params,Status\ntrain.py,--x 1,\ntrain.py,--x 2,\n")
    writer = StatusWriter(path)

    path.write_text("File,Params,Status\ntrain.py,--x 100,\ntrain.py,--x 2,\n")
    with pytest.raises(StatusError, match="line 2: FINISHED") as caught:
        writer.set_many({2: RowStatus("FINISHED"), 3: RowStatus("KILLED")})

    assert caught.value.remedy
    assert path.read_text() == "File,Params,Status\ntrain.py,--x 100,\ntrain.py,--x 2,KILLED\n"
    writer.flush()  # it is not tried again
    writer.set(3, "FINISHED")


@pytest.mark.parametrize(
    "disorder",
    [
        b"",
        b"# only a comment\n",
        b'File,Status\ntrain.py,"\n',
        b"File,Status\ntrain.py,caf\xe9\n",
        b"Status\n\n",
        None,
    ],
)
def test_a_file_in_disorder_is_left_alone_and_written_later(
    write: Write, disorder: bytes | None
) -> None:
    path = write("File,Status\ntrain.py,\ntrain.py,\n")
    writer = StatusWriter(path)
    good = path.read_bytes()

    if disorder is None:
        path.unlink()
    else:
        path.write_bytes(disorder)
    with pytest.raises(StatusError) as caught:
        writer.set(2, "RUNNING", "abc")
    assert "at the next status change" in (caught.value.remedy or "")
    assert (path.read_bytes() if path.exists() else None) == disorder

    path.write_bytes(good)
    writer.set(3, "FINISHED")
    assert path.read_text() == "File,Status,Run\ntrain.py,RUNNING,abc\ntrain.py,FINISHED,\n"


def test_what_could_not_be_written_is_completed_by_what_comes(write: Write) -> None:
    path = write("File,Status,Run\ntrain.py,,\n")
    writer = StatusWriter(path)
    good = path.read_bytes()

    path.write_bytes(b"")
    with pytest.raises(StatusError):
        writer.set(2, "RUNNING", "abc")
    path.write_bytes(good)
    writer.set(2, "FINISHED")

    assert path.read_text() == "File,Status,Run\ntrain.py,FINISHED,abc\n"


def test_a_row_that_is_being_written_gets_no_new_columns(write: Write) -> None:
    path = write("File,Params\ntrain.py,\n")
    writer = StatusWriter(path)

    path.write_text("File,Params\ntrain.py,\ntra")
    writer.set(2, "FINISHED")

    assert path.read_text() == "File,Params,Status\ntrain.py,,FINISHED\ntra"


def test_a_line_without_a_run(write: Write) -> None:
    writer = StatusWriter(write("# x\nFile\ntrain.py\n"))

    with pytest.raises(StatusError, match="no run in line 2"):
        writer.set(2, "RUNNING")


def test_somebody_who_saves_between_reading_and_replacing_loses_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("Name,File,Status\na,train.py,\n")
    writer = StatusWriter(path)
    fsync, saves = os.fsync, iter(range(3))

    def save_first(descriptor: int) -> None:
        fsync(descriptor)
        if (number := next(saves, None)) is not None:
            path.write_text(f"# save {number}\n{path.read_text()}")

    monkeypatch.setattr(files.os, "fsync", save_first)
    writer.set(2, "FINISHED")

    assert path.read_text() == (
        "# save 2\n# save 1\n# save 0\nName,File,Status\na,train.py,FINISHED\n"
    )


def test_nothing_comes_between_the_last_look_at_the_file_and_its_replacement(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system, each of these calls may take seconds."""
    path = write("File,Status\ntrain.py,\n")
    writer = StatusWriter(path)
    calls: list[str] = []

    def noted(module: object, name: str) -> None:
        call = getattr(module, name)

        def act(*given: object, **options: object) -> object:
            calls.append(name)
            return call(*given, **options)

        monkeypatch.setattr(module, name, act)

    for module, name in ((os, "fsync"), (os, "open"), (os, "replace"), (files, "_fingerprint")):
        noted(module, name)
    writer.set(2, "FINISHED")
    assert calls[calls.index("replace") - 1] == "_fingerprint"


def test_a_file_that_never_rests(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("File,Status\ntrain.py,\n")
    writer = StatusWriter(path)
    fsync = os.fsync

    def save(descriptor: int) -> None:
        fsync(descriptor)
        path.write_text(path.read_text() + "\n")

    with monkeypatch.context() as context:
        context.setattr(files.os, "fsync", save)
        with pytest.raises(StatusError, match="keeps changing"):
            writer.set(2, "FINISHED")
    assert "FINISHED" not in path.read_text()

    writer.flush()
    assert "train.py,FINISHED" in path.read_text()


def test_mode_owner_attributes_and_links_are_kept(write: Write, folder: Path) -> None:
    path = write("File,Status\ntrain.py,\n")
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 12345, 54321)
    attributes = _set_attribute(path)
    before = path.stat()
    other = folder / "elsewhere"
    other.mkdir()
    link = other / "link.csv"
    link.symlink_to(os.path.relpath(path, other))

    StatusWriter(link).set(2, "FINISHED")

    assert link.is_symlink()
    assert path.read_text() == "File,Status\ntrain.py,FINISHED\n"
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert after.st_mtime_ns > before.st_mtime_ns  # so that an editor notices
    if attributes:
        assert os.getxattr(path, "user.note") == b"mine"
    assert list(other.iterdir()) == [link]
    assert sorted(p.name for p in folder.iterdir()) == ["elsewhere", path.name, "train.py"]


def _set_attribute(path: Path) -> bool:
    try:
        os.setxattr(path, "user.note", b"mine")
    except OSError:  # not every file system has them
        return False
    return True


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_colleagues_file_stays_the_groups() -> None:
    """Who may write in the folder but not give files away becomes the owner, nothing worse."""
    with tempfile.TemporaryDirectory(prefix="radt-") as name:
        path = Path(name) / "experiment.csv"
        path.write_text("File,Status\ntrain.py,\n")
        path.chmod(0o664)
        os.chown(name, 1001, 4242)
        os.chown(path, 1001, 4242)
        Path(name).chmod(0o770)
        code = (
            "import os, sys; from radt.experiment.status import StatusWriter\n"
            "os.setgroups([4242]); os.setgid(1002); os.setuid(1002)\n"
            "StatusWriter(sys.argv[1]).set(2, 'FINISHED')\n"
        )
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=180, cwd="/")

        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1002, 4242, 0o664)
        assert path.read_text() == "File,Status\ntrain.py,FINISHED\n"


def test_nobody_else_can_read_a_private_file_while_it_is_replaced(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("File,Status\ntrain.py,\n")
    path.chmod(0o600)
    writer = StatusWriter(path)
    modes: list[int] = []
    copystat = shutil.copystat

    def note_mode(source: Path, target: Path) -> None:
        modes.append(target.stat().st_mode & 0o777)
        copystat(source, target)

    monkeypatch.setattr(files.shutil, "copystat", note_mode)
    previous = os.umask(0)
    try:
        writer.set(2, "FINISHED")
    finally:
        os.umask(previous)

    assert modes == [0o600]


def test_a_full_disk_leaves_the_file_as_it_was(folder: Path) -> None:
    """The size limit of a process stands for the disk: both fail the write of the new file."""
    path = folder / "experiment.csv"
    content = "File,Params,Status\n" + f"train.py,{'x' * 8000},\n" * 2
    path.write_text(content)
    script = f"""
import resource, signal
from radt.errors import StatusError
from radt.experiment.status import StatusWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = StatusWriter({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    writer.set(2, "RUNNING", "abc")
except StatusError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(sorted(p.name for p in writer._file._target.parent.iterdir()))
assert writer._file._target.read_text() == {content!r}
writer.set(3, "FINISHED")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False
    )

    assert done.returncode == 0, done.stderr
    said, left = done.stdout.splitlines()
    assert "cannot be written: File too large" in said and "radt did not change the file" in said
    assert left == "['experiment.csv', 'train.py']"
    rows = path.read_text().splitlines()[1:]
    assert rows[0].endswith(",RUNNING,abc") and rows[1].endswith(",FINISHED,")


def test_threads_write_at_once(write: Write) -> None:
    path = write("File,Name,Status\n" + "".join(f"train.py,{n},\n" for n in range(8)))
    writer = StatusWriter(path)
    errors: list[BaseException] = []

    def work(line: int) -> None:
        try:
            for status in ("RUNNING", "FINISHED"):
                writer.set(line, status, f"run-{line}")
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(line,)) for line in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    assert path.read_text().splitlines()[1:] == [
        f"train.py,{line - 2},FINISHED,run-{line}" for line in range(2, 10)
    ]


def _die_at_line(writer: StatusWriter, number: int) -> None:
    """Set a status, and kill this process with SIGKILL at the n-th line that radt executes."""
    sources = {files.__file__, sys.modules[StatusWriter.__module__].__file__}
    left = number

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal left
        if frame.f_code.co_filename not in sources:  # type: ignore[attr-defined]
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    writer.set(2, "FINISHED", "abc")
    sys.settrace(None)


def _files_after_kills(path: Path, old: bytes) -> tuple[list[bytes], int]:
    """The file after a kill at each line in turn, and how many kills left a temporary file."""
    found: list[bytes] = []
    leftovers = 0
    for number in range(10_000):
        path.write_bytes(old)
        writer = StatusWriter(path)  # clears away what the one before has left
        assert sorted(p.name for p in path.parent.iterdir()) == ["experiment.csv", "train.py"]
        child = os.fork()
        if child == 0:
            try:
                _die_at_line(writer, number)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        found.append(path.read_bytes())
        leftovers += files.temporary_of(path).exists()
        if not os.WIFSIGNALED(status):
            return found, leftovers
    raise AssertionError("the write never got to its end")


def test_killed_at_any_point_the_file_is_whole(write: Write) -> None:
    old = b"\xef\xbb\xbfFile,Status,Run\r\ntrain.py,RUNNING,abc\r\n# end"
    new = old.replace(b"RUNNING", b"FINISHED")
    # In a process of its own: that of the tests is large, which makes each fork slow.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found, leftovers = pool.apply(_files_after_kills, (write(old), old))

    assert set(found) == {old, new}  # whole, and the kills came both before and after
    assert found == sorted(found, key=(old, new).index)
    assert len(found) > 30 and leftovers > 0
    assert found[-1] == new


def test_a_reader_never_sees_half_a_file(write: Write) -> None:
    path = write("File,Status\ntrain.py,\n" + "# filling\n" * 5000)
    writer_code = (
        "import sys; from radt.experiment.status import StatusWriter\n"
        "writer = StatusWriter(sys.argv[1])\n"
        "for n in range(60): writer.set(2, ('RUNNING', 'FINISHED')[n % 2])\n"
    )
    allowed = {
        path.read_text().replace("train.py,", f"train.py,{status}")
        for status in ("", "RUNNING", "FINISHED")
    }
    seen: set[str] = set()
    with subprocess.Popen([sys.executable, "-c", writer_code, str(path)]) as process:
        while process.poll() is None:
            seen.add(path.read_text())
    assert process.returncode == 0
    assert seen <= allowed
    assert len(seen) > 1
