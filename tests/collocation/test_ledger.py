"""The ledger names what a killed runner has left, and nothing else."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from radt.collocation.ledger import Container, CreatedLedger, LedgerEntry, MigInstance, MpsDaemon
from radt.errors import DeviceError

INSTANCE = MigInstance("GPU-1", "3g.20gb", start=4, size=4, existing=(1, 5))
DAEMON = MpsDaemon(("GPU-1", "GPU-2"), "/run/radt/mps/1")

_INTEND = """
import sys
from radt.collocation.ledger import Container, CreatedLedger
CreatedLedger().intend(Container("radt-ä b"), run_id="r1")
print("noted", flush=True)
sys.stdin.read()
"""


@contextmanager
def runner() -> Iterator[subprocess.Popen[str]]:
    """Another process that has noted a container and lives until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _INTEND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "noted\n"
        yield process
        process.kill()


def only(ledger: CreatedLedger) -> LedgerEntry:
    (entry,) = ledger.entries()
    return entry


def change(entry: LedgerEntry, **owner: Any) -> None:
    content = json.loads(entry.path.read_text())
    content["owner"] |= owner
    entry.path.write_text(json.dumps(content))


@pytest.mark.parametrize("thing", [INSTANCE, DAEMON, Container("radt-1", "podman")], ids=str)
def test_what_is_intended_is_on_disk_before_it_is_made(
    thing: MigInstance | MpsDaemon | Container,
) -> None:
    CreatedLedger().intend(thing, run_id="r1", workload_id="w1")
    entry = only(CreatedLedger())
    assert (entry.thing, entry.run_id, entry.workload_id) == (thing, "r1", "w1")
    assert not entry.orphaned


def test_ids_are_noted_when_the_thing_is_made() -> None:
    entry = CreatedLedger().intend(INSTANCE)
    first = entry.path.stat().st_ino
    entry.confirm(gpu_instance=3)
    thing = only(CreatedLedger()).thing
    assert isinstance(thing, MigInstance)
    assert thing.gpu_instance == 3
    assert entry.path.stat().st_ino != first  # never half written: a new file took its place
    assert list(CreatedLedger().folder.iterdir()) == [entry.path]
    assert (thing.profile, thing.existing) == ("3g.20gb", (1, 5))


def test_details_that_another_version_notes_are_no_damage() -> None:
    entry = CreatedLedger().intend(INSTANCE)
    content = json.loads(entry.path.read_text())
    content["thing"]["mig_uuids"] = ["MIG-1"]
    entry.path.write_text(json.dumps(content))
    assert only(CreatedLedger()).thing == INSTANCE


def test_a_thing_that_is_gone_has_no_entry() -> None:
    first, second = CreatedLedger().intend(INSTANCE), CreatedLedger().intend(INSTANCE)
    first.done()
    first.done()
    assert only(CreatedLedger()).path == second.path


def test_entry_of_a_killed_runner_is_orphaned_and_of_a_living_one_not() -> None:
    with runner() as process:
        entry = only(CreatedLedger())
        assert (entry.owner.pid, entry.thing, entry.run_id) == (
            process.pid,
            Container("radt-ä b"),
            "r1",
        )
        assert not entry.orphaned
        process.kill()
        process.wait()
        assert entry.orphaned


def test_a_later_process_with_the_runners_number_is_not_the_runner() -> None:
    entry = CreatedLedger().intend(DAEMON)
    change(entry, start_ticks=entry.owner.start_ticks - 1)
    assert only(CreatedLedger()).orphaned


def test_nobody_owns_what_is_of_the_boot_before() -> None:
    entry = CreatedLedger().intend(DAEMON)
    change(entry, boot_id="another")
    assert only(CreatedLedger()).owner.rebooted
    assert only(CreatedLedger()).orphaned


def test_an_owner_in_another_pid_namespace_counts_as_alive() -> None:
    entry = CreatedLedger().intend(DAEMON)
    change(entry, pid_namespace="pid:[1]", start_ticks=0)
    assert not only(CreatedLedger()).orphaned


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "incomplete"),
        ('{"format": 1, "kind": "mps-da', "incomplete"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1, "kind": "quantum", "thing": {}}', "quantum"),
        ('{"format": 1, "kind": "container", "thing": {"nome": "x"}, "owner": {}}', "'name'"),
        ("[]", "TypeError"),
    ],
)
def test_files_that_cannot_be_understood_are_reported_and_the_others_read(
    text: str, reason: str
) -> None:
    ledger = CreatedLedger()
    entry = ledger.intend(DAEMON)
    broken = ledger.folder / "mps-daemon-000.json"
    broken.write_text(text)
    assert only(ledger).path == entry.path
    (damaged,) = ledger.damaged()
    assert damaged.path == broken
    assert reason in damaged.reason


def test_without_a_folder_to_write_nothing_may_be_made() -> None:
    ledger = CreatedLedger()
    ledger.folder.write_text("in the way")
    with pytest.raises(DeviceError, match="created cannot be written") as caught:
        ledger.intend(DAEMON)
    assert "RADT_RUNTIME_DIR" in str(caught.value.remedy)


@contextmanager
def full_disk() -> Iterator[None]:
    """Files may have ten bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_nothing_is_noted_and_nothing_is_lost() -> None:
    entry = CreatedLedger().intend(DAEMON)
    with full_disk():
        with pytest.raises(DeviceError, match="cannot be written"):
            CreatedLedger().intend(INSTANCE)
        with pytest.raises(DeviceError, match="cannot be written"):
            entry.confirm(pid=1, start_ticks=2)
    assert only(CreatedLedger()).thing == DAEMON
    assert CreatedLedger().damaged() == []
    assert list(CreatedLedger().folder.iterdir()) == [entry.path]


def test_without_anything_made_the_ledger_is_empty(tmp_path: Path) -> None:
    ledger = CreatedLedger(tmp_path / "nowhere")
    assert (ledger.entries(), ledger.damaged()) == ([], [])
    assert not ledger.folder.exists()
