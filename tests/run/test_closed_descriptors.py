"""Scripts that close all descriptors, as libraries for daemons do, and open files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import radt
from radt.journal.format import SEGMENT_SLOTS
from radt.model import RunStatus
from tests.run.conftest import Alone, Joined

COUNT = 3 * SEGMENT_SLOTS

#: What a daemon does. Its own files get the numbers of those that radt had open; the two sockets
#: say if radt has sent something.
CLOSES = f"""\
import os, radt, socket, sys

def become_daemon():
    if sys.argv[1] == "forked" and os.fork():
        raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
    os.closerange(3, 256)
    files = {{os.open(f"mine-{{n}}", os.O_RDWR | os.O_CREAT): n for n in range(16)}}
    for descriptor in files: os.write(descriptor, b"mine")
    return files, socket.socketpair()

with radt.Run("told", params={{"lr": 0.1}}) as run:
    run.log_metric("loss", 0.0, 0)
    run.name  # known once radt is connected
    files, (mine, peer) = become_daemon()
    for step in range(1, {COUNT}): run.log_metric("loss", step / 2, step)
    run.log_param("late", 1)
    run.set_tag("stage", "closed")
    run.log_metric("new", 1.0)
    run.log_artifact("mine-0")
for descriptor, n in files.items():
    assert os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(f"/mine-{{n}}")
    os.write(descriptor, b" still")
peer.setblocking(False)
try: print(peer.recv(1 << 16))
except BlockingIOError: mine.send(b"open"); print(peer.recv(16))
"""


def check_files(folder: Path, out: str) -> None:
    assert out.strip() == "b'open'", "radt sends nothing on the script's socket, nor closes it"
    for number in range(16):
        assert (folder / f"mine-{number}").read_text() == "mine still"


def test_alone_all_is_recorded_and_the_scripts_files_are_left_alone(alone: Alone) -> None:
    out, err = alone.run(CLOSES, "itself")
    assert err == ""
    check_files(alone.folder, out)
    (run,) = alone.reader.runs()
    assert (run.status, run.name) == (RunStatus.FINISHED, "told")
    frame = radt.load(run.run_id, home=alone.home)
    assert list(frame[frame.metric == "loss"].step) == [*range(COUNT)]
    assert sum(frame.metric == "new") == 1
    params, tags = alone.reader.params(run.run_id), alone.reader.tags(run.run_id)
    assert (params["lr"], params["late"], tags["stage"]) == ("0.1", "1", "closed")


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("how", ["itself", "forked"])
def test_joined_all_is_in_the_journal(joined: Joined, how: str) -> None:
    out, err = joined.run(CLOSES, how)
    assert err == ""
    check_files(joined.folder, out)
    found = joined.found()
    process = "child 1" if how == "forked" else ""
    steps = found.steps("loss") if how == "itself" else [0, *found.steps("loss", process)]
    assert steps == [*range(COUNT)]
    assert found.values("new", process) == [1.0]
    assert not any(batch.lost or batch.lost_events for batch in found.batches)
