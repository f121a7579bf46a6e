"""Makes the folder that one process's journal lives in."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time

import radt
from radt.clock import Clock
from radt.journal.format import CLOSED_FILE, LABELS_FOLDER, META_FILE, JournalMeta
from radt.procfs import boot_id, own_start_ticks


def create_folder(journal: str, *, main: bool, rank: int | None) -> str:
    """Make a folder for the calling process, complete with who it is, and return its path.

    Args:
        journal: The run's journal folder (`radt.home.RunDir.journal`); made if it is missing.
        main: False for a forked child.
        rank: Of distributed training, None outside of it.

    Raises:
        OSError: The disk is full or the folder may not be written.
    """
    os.makedirs(journal, exist_ok=True)  # noqa: PTH103 - forked children come this way often
    pid = os.getpid()
    meta = JournalMeta(
        pid=pid,
        ppid=os.getppid(),
        start_ticks=own_start_ticks(),
        boot_id=boot_id(),
        host=socket.gethostname(),
        label=_claim_label(journal, main=main, rank=rank),
        main=main,
        rank=rank,
        offset_ns=Clock.at_hand().offset_ns,
        created_ns=time.monotonic_ns(),
        radt_version=radt.__version__,
    )
    name = f"{pid}-{secrets.token_hex(4)}"
    hidden = f"{journal}/.{name}"
    os.mkdir(hidden, 0o700)  # noqa: PTH102
    try:
        with open(f"{hidden}/{META_FILE}", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(meta.to_json(), file)
        os.rename(hidden, f"{journal}/{name}")  # noqa: PTH104 - readers see it whole or not
    except OSError:
        shutil.rmtree(hidden, ignore_errors=True)  # a full disk is tried again every second
        raise
    return f"{journal}/{name}"


def mark_closed(folder: str) -> None:
    """Leave word that nothing will be added to a process's folder."""
    try:
        os.close(os.open(f"{folder}/{CLOSED_FILE}", os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        pass  # the reader then goes by the end of the process


def _claim_label(journal: str, *, main: bool, rank: int | None) -> str:
    """The process's name within the run: a file of that name, made by whoever comes first."""
    base = f"rank {rank}" if rank else ""
    if main and rank is not None:
        return base  # a rank that was restarted carries on as itself
    labels = f"{journal}/{LABELS_FOLDER}"
    os.makedirs(labels, exist_ok=True)  # noqa: PTH103
    if main and _claim(f"{labels}/main"):
        return base
    prefix = f"{base} child ".lstrip()
    number = 1 + sum(name.startswith(prefix) for name in os.listdir(labels))  # noqa: PTH208
    while not _claim(f"{labels}/{prefix}{number}"):
        number += 1
    return f"{prefix}{number}"


def _claim(path: str) -> bool:
    """Whether the label is the caller's: claimed now, or before by this very process."""
    owner = f"{os.getpid()} {own_start_ticks()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        # A script that replaced itself (exec) is still the process that it was.
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read() == owner
    try:
        os.write(descriptor, owner.encode("ascii"))
    except OSError:
        os.unlink(path)  # noqa: PTH108 - nobody's, had it stayed
        raise
    finally:
        os.close(descriptor)
    return True
