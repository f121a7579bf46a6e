"""Takes away what dead runners have left, by the ledger: exactly that, and nothing like it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

from radt.collocation.ledger import Container, Entry, Ledger, MigInstance, MpsDaemon
from radt.collocation.mig import destroy_instance
from radt.collocation.mps_daemon import remove_daemon, remove_folder
from radt.errors import DeviceError

_CONTAINER_TIMEOUT_S = 60.0
#: What docker and podman say of a container that is not there.
_NO_CONTAINER = "no such container"


def clean_up(ledger: Ledger, *, only_orphans: bool = True, say: Callable[[str], None]) -> list[str]:
    """Take away the things of the ledger; return what could not be, a sentence each.

    Args:
        ledger: Where they are noted; a thing that is gone loses its entry.
        only_orphans: Leave things alone whose owner lives; False takes away everything.
        say: Gets a sentence about each thing that was taken away.
    """
    failures = []
    # Daemons and containers first: a MIG instance goes only when nothing runs on it.
    for entry in sorted(
        ledger.entries(), key=lambda entry: (isinstance(entry.thing, MigInstance), entry.path)
    ):
        if only_orphans and not entry.orphaned:
            continue
        try:
            what = _remove(entry)
            entry.done()
        except DeviceError as error:
            failures.append(f"{entry.thing} was not removed: {error}")
        else:
            say(what)
    return failures


def _remove(entry: Entry) -> str:
    """Take one thing away; return what happened to it."""
    thing = entry.thing
    # A restart of the machine ends processes and MIG instances; what has their ids now is others'.
    rebooted = entry.owner.rebooted
    match thing:
        case MpsDaemon() if rebooted:
            remove_folder(thing)
        case MpsDaemon():
            remove_daemon(thing)
        case MigInstance() if not rebooted:
            destroy_instance(thing)
        case Container():
            _remove_container(thing)
    if rebooted and not isinstance(thing, Container):
        return f"{thing}: gone after the machine's restart"
    return f"{thing}: removed"


def _remove_container(thing: Container) -> None:
    tool = shutil.which(thing.tool)
    if tool is None:
        raise DeviceError(
            f"{thing.tool} not found", f"Remove it with `{thing.tool} rm -f {thing.name}`"
        )
    try:
        done = subprocess.run(
            [tool, "rm", "-f", thing.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CONTAINER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(
            f"{thing.tool} does not answer: {error}", f"Run `{thing.tool} rm -f {thing.name}`"
        ) from error
    if done.returncode != 0 and _NO_CONTAINER not in done.stderr.lower():
        raise DeviceError(
            f"{thing.tool} refused: {done.stderr.strip()}", f"Run `{thing.tool} rm -f {thing.name}`"
        )
