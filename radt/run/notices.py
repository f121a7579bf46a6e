"""Print warnings, each once, and alerts for the user of a training script."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from radt import settings
from radt.errors import RadtError, described
from radt.processes import command

Result = TypeVar("Result")

_told: set[str] = set()


def warn_once(text: str) -> None:
    """Write a line to standard error, unless it was written before. Never raises."""
    if text not in _told:
        _told.add(text)
        say(text)


def say(text: str) -> None:
    """Write a line to standard error. Never raises."""
    try:
        sys.stderr.write(f"radt: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # standard error is missing, closed or a broken pipe


def guarded(what: str, action: Callable[[], Result]) -> Result | None:
    """Run ``action``. Turn any failure into a warning, so that training goes on."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - MLflow's plug-ins may raise anything
        reason = error if isinstance(error, RadtError | OSError) else described(error)
        warn_once(f"{what} did not work: {reason}. Training goes on")
    return None


def send_alert(experiment: str, text: str) -> None:
    """Notify in the background; write to standard error if no notification is configured."""
    target = settings.value_for_script(settings.NOTIFY, warn_once)
    if not target:
        say(f"alert: {text}")
        return
    send = partial(
        subprocess.run,
        command("radt.runner.notify", experiment, text),
        env=os.environ | {settings.NOTIFY.variables[0]: target},
        check=False,  # its errors are already on standard error
    )
    threading.Thread(target=guarded, args=("sending an alert", send), name="alert").start()
