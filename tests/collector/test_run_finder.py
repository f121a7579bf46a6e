"""Runs that wait for a collector are found by whoever can look."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from radt.clock import Clock
from radt.collector.manifest import Manifest, ask_for_collection
from radt.collector.protocol import Registration, RunRequest
from radt.collector.rows import put_rows
from radt.collector.run_finder import RunFinder
from radt.collector.runs import RunStates
from radt.collector.service import Service
from radt.home import Home
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import PARENT


def _asking(home: Home, run_id: str, name: str) -> None:
    folder = home.run_dir(run_id).create().path
    registration = Registration(folder.name, str(home.store_path), str(folder))
    run = RunRequest(
        registration=registration,
        workload_id="w" * 32,
        experiment="e",
        name=name,
        pid=os.getpid(),
        started_monotonic_ns=time.monotonic_ns(),
    )
    Manifest.of_this_process(run).write()
    ask_for_collection(folder)


def test_a_run_that_cannot_be_looked_at_now_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _asking(Home(tmp_path / "radt-data").create(), "7" * 32, "n")
    finder = RunFinder()

    def fails(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as full:  # another thread has taken the last one
        full.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match="Too many open files"):
            list(finder.look([]))
    assert [manifest.run.name for manifest in finder.look([])] == ["n"]
    assert not [*finder.look([])], "each once"


def test_runs_that_were_found_and_not_taken_up_are_found_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "radt-data").create()
    for number in range(3):
        _asking(home, str(number) * 32, str(number))
    finder, taken = RunFinder(), list[str]()

    def take_up(manifest: Manifest) -> None:
        if len(taken) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        taken.append(manifest.run.name)

    service = SimpleNamespace(_take_up_or_end=take_up)
    with pytest.raises(OSError, match="Too many open files"):
        Service._take_up_all(service, finder.look([]))  # type: ignore[arg-type]
    again = [manifest.run.name for manifest in finder.look([])]
    assert sorted(taken + again) == ["0", "1", "2"]


def test_a_remembered_run_that_cannot_be_read_now_stays(tmp_path: Path) -> None:
    states = RunStates(tmp_path / "runs")
    unreadable = tmp_path / "runs" / f"{'7' * 32}.json"
    unreadable.mkdir()
    assert [*states.load()] == []
    assert unreadable.exists()


def test_a_workload_begins_with_the_parent_also_where_a_child_is_found_first(
    tmp_path: Path,
) -> None:
    store, clock = tmp_path / "radt.db", Clock(1_000)
    parent = RunRequest(Registration("p" * 32, str(store), ""), "w" * 32, "e", 1, 5)
    child = replace(
        parent,
        registration=Registration("c" * 32, str(store), ""),
        started_monotonic_ns=7,
        letter="a.job",
        tags={PARENT: "p" * 32},
    )
    with StoreWriter(store) as writer, StoreReader(store) as reader:
        for run in (child, parent):
            put_rows(writer, reader, run, clock)
        assert reader.workload("w" * 32).barrier_ns == 1_005
