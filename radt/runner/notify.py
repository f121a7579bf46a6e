"""Sends a notification when runs of a workload failed or the experiment ended.

A command gets the notification as JSON on its standard input, and `EVENT_VARIABLE` and
`TEXT_VARIABLE` in its environment. Every other target is an address in apprise's syntax.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from radt import settings, units
from radt.errors import UsageError
from radt.masking import masked_addresses
from radt.model import RunStatus
from radt.processes import stop_child
from radt.runner.outcome import ExperimentOutcome
from radt.runner.progress import WorkloadProgress

EVENT_VARIABLE = "RADT_NOTIFY_EVENT"
TEXT_VARIABLE = "RADT_NOTIFY_TEXT"
SEND_TIMEOUT_S = 60.0
#: Seconds that the end of an experiment waits for notifications in progress.
CLOSE_TIMEOUT_S = 15.0

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


class NotificationEvent(StrEnum):
    """The occasion of a notification."""

    FAILED = "failed"  # a workload with runs that did not finish
    ENDED = "ended"  # the experiment, however it ended
    ALERT = "alert"  # sent by a script (`radt.Run.alert`)


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification: ``text`` for people, ``counts`` of runs by status."""

    event: NotificationEvent
    experiment: str
    text: str
    counts: Mapping[str, int]
    elapsed_s: float
    file: str
    host: str = field(default_factory=socket.gethostname)

    @classmethod
    def of_workload(cls, workload: WorkloadProgress, file: str) -> Notification:
        """Report that runs of a workload did not finish."""
        counts = Counter(run.status for run in workload.runs)
        failed = _counts_text({status: n for status, n in counts.items() if status != "FINISHED"})
        name = workload.experiment
        text = f"{name}: workload {workload.label} had {failed} ({_runs_text(workload)})"
        event = NotificationEvent.FAILED
        return cls(event, name, text, _by_name(counts), workload.elapsed_s, file)

    @classmethod
    def of_experiment(
        cls, experiment: str, outcome: ExperimentOutcome, file: str, problem: str = ""
    ) -> Notification:
        """Report that the experiment ended; ``problem`` is why radt itself could not continue."""
        how = "ended"
        if problem:
            how = f"was stopped by an error ({masked_addresses(problem)})"
        elif outcome.interrupted_by is not None:
            how = f"was stopped by {signal.Signals(outcome.interrupted_by).name}"
        counts = _counts_text(outcome.counts) or "no run"
        text = f"{experiment} {how} after {units.duration(outcome.elapsed_s)}: {counts}"
        event = NotificationEvent.ENDED
        return cls(event, experiment, text, _by_name(outcome.counts), outcome.elapsed_s, file)

    def to_json(self) -> bytes:
        """Return the JSON that commands get."""
        text = json.dumps(asdict(self), ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")  # undecodable file names as JSON escapes


class Notifier:
    """Sends notifications from its own thread: it never delays or fails the experiment.

    Args:
        target: A command line or an address. Empty to send nothing.
        say: Called once, from any thread, with the reason why a notification was not sent.

    Raises:
        UsageError: The target is neither, or apprise is not installed.
    """

    def __init__(self, target: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._has_complained = False
        self._waiting: queue.SimpleQueue[Notification | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] = []
        #: Returns why a notification was not sent; "" if it was.
        self._send: Callable[[Notification], str] | None = None
        if _URL.match(target := target.strip()):
            self._send = _apprise(target)
        elif target:
            self._arguments = _command(target)
            self._send = self._run_command

    def send(self, notification: Notification) -> None:
        """Queue it for sending in the background, in order."""
        if self._send is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notifications", daemon=True)
            self._thread.start()
        self._waiting.put(notification)

    def close(self) -> None:
        """Wait up to `CLOSE_TIMEOUT_S` for notifications in progress; drop the rest."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        late, self._thread = self._thread.is_alive(), None
        if late:
            self._complain(f"no answer within {CLOSE_TIMEOUT_S:.0f} s")
            self._kill_command()

    def _work(self) -> None:
        assert self._send is not None
        me = threading.current_thread()
        while (notification := self._waiting.get()) is not None and self._thread is me:
            try:
                reason = self._send(notification)
            except Exception as error:  # noqa: BLE001 - later notifications must still be sent
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self._complain(reason)

    def _complain(self, reason: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._say(f"a notification was not sent: {masked_addresses(reason)}")

    def _run_command(self, notification: Notification) -> str:
        """Run the command to its end, in its own session so that Ctrl-C does not reach it."""
        name = self._arguments[0]
        variables = {EVENT_VARIABLE: str(notification.event), TEXT_VARIABLE: notification.text}
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=os.environ | variables,
                start_new_session=True,
            )
            _, output = self._process.communicate(notification.to_json(), SEND_TIMEOUT_S)
        except OSError as error:
            return f"{name}: {error.strerror}"
        except subprocess.TimeoutExpired:
            self._kill_command()
            return f"{name} took longer than {SEND_TIMEOUT_S:.0f} s"
        if not (code := self._process.returncode):
            return ""
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        return ", ".join([f"{name}: {how}", *last])

    def _kill_command(self) -> None:
        """Kill the command and its children; harmless if it has ended."""
        if self._process is not None and self._process.poll() is None:
            stop_child(self._process, 0.0, group=True)


def _command(line: str) -> list[str]:
    try:
        arguments = shlex.split(line)
    except ValueError as error:
        raise UsageError(
            f"Expected a command in --notify, got {masked_addresses(line)!r}: {error}",
            "Quote as in a shell",
        ) from error
    if shutil.which(arguments[0]) is None:
        raise UsageError(
            f"Command {masked_addresses(arguments[0])!r} of --notify not found",
            "Give an executable on PATH with its arguments, or an address such as slack://…",
        )
    return arguments


def _apprise(address: str) -> Callable[[Notification], str]:
    """Return a sender for an address: one of apprise's, or a web address that gets JSON."""
    try:
        import apprise  # imported late: it takes half a second
    except ImportError as error:
        raise UsageError(
            "--notify with an address needs apprise", "Run pip install 'radt[notify]'"
        ) from error
    apprise.logger.propagate = False  # its messages are reported by `Notifier`
    apprise.logger.addHandler(logging.NullHandler())
    # apprise knows the web addresses of Slack, Discord and others. The rest get JSON; the keys of
    # their query need apprise's prefix for parameters that are passed on to the server.
    as_json = re.sub(r"^http(s?)://", r"json\1://", address, flags=re.IGNORECASE)
    if as_json != address:
        as_json = re.sub(r"([?&])(?=\w)", r"\1-", as_json)
    service = apprise.Apprise.instantiate(address) or apprise.Apprise.instantiate(as_json)
    if not isinstance(service, apprise.NotifyBase) or re.search(r"\s", address):
        raise UsageError(
            f"Expected an address in --notify, got {masked_addresses(address)}",
            "See https://appriseit.com/services for what apprise supports, such as slack://, "
            "mailto:// and json://",
        )
    service.redirects = False  # a redirected POST becomes a GET, which loses the notification
    sender = apprise.Apprise()
    sender.add(service)

    def send(notification: Notification) -> str:
        title = f"radt: {notification.experiment} {notification.event}"
        result = sender.notify(body=notification.text, title=title, timeout=SEND_TIMEOUT_S)
        logs = "; ".join(entry.message for entry in result.logs())
        return "" if result else f"{masked_addresses(address)}: {logs}"

    return send


def _counts_text(counts: Mapping[RunStatus, int]) -> str:
    """Return ``2 FAILED and 1 OOM``."""
    return units.joined(
        f"{counts[status]:,} {status}" for status in RunStatus if counts.get(status)
    )


def _by_name(counts: Mapping[RunStatus, int]) -> dict[str, int]:
    return {str(status): counts[status] for status in RunStatus if counts.get(status)}


def _runs_text(workload: WorkloadProgress) -> str:
    """Return ``7 × resnet50 on 0``, ``a, 2 × b on 0, 1+2, cpu``; without a place, ``a, 2 × b``."""
    names = Counter(run.name for run in workload.runs)
    runs = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
    return f"{runs} on {workload.place}" if workload.place else runs


def main() -> None:
    """Send the alert of a script: ``python -m radt.runner.notify EXPERIMENT TEXT``."""

    def say(text: str) -> None:
        sys.stderr.write(f"radt: {text}\n")

    experiment, text = sys.argv[1:]
    alert = Notification(NotificationEvent.ALERT, experiment, text, {}, 0.0, "")
    try:
        notifier = Notifier(settings.variable(settings.NOTIFY).value, say)
    except UsageError as error:
        say(f"an alert was not sent: {error}")
    else:
        notifier.send(alert)
        notifier.close()


if __name__ == "__main__":
    main()
