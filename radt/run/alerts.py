"""Send what a script alerts its user of: by the command or address that radt notifies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial

from radt import settings
from radt.run.backends import guarded
from radt.run.notices import say, warn_once


def send_alert(experiment: str, text: str) -> None:
    """Notify in the background, or write to standard error where nobody is to be notified."""
    target = settings.variable(settings.NOTIFY).value
    target = target or settings.value_for_script(settings.NOTIFY, warn_once)
    if not target:
        say(f"alert: {text}")
        return
    send = partial(
        subprocess.run,
        [sys.executable, "-P", "-m", "radt.runner.notify", experiment, text],
        env=os.environ | {settings.NOTIFY.variables[0]: target},
        check=False,  # it writes to standard error what it could not do
    )
    threading.Thread(target=guarded, args=("sending an alert", send), name="alert").start()
