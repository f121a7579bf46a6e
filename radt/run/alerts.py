"""Send what a script alerts its user of: by the command or address that radt notifies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from radt import settings
from radt.errors import described
from radt.run.notices import say, warn_once

#: Longer than `radt.runner.notify` takes.
_TIMEOUT_S = 90.0


def send_alert(experiment: str, text: str) -> None:
    """Notify in the background, or write to standard error where nobody is to be notified."""
    target = settings.variable(settings.NOTIFY).value
    target = target or settings.value_for_script(settings.NOTIFY, warn_once)
    if not target:
        say(f"alert: {text}")
        return
    content = json.dumps({"experiment": experiment, "text": text})
    threading.Thread(target=_send, args=(target, content), name="alert").start()


def _send(target: str, content: str) -> None:
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "radt.runner.notify"],
            input=content.encode(),
            env=os.environ | {settings.NOTIFY.variables[0]: target},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        warn_once(f"an alert was not sent: {described(error)}")
