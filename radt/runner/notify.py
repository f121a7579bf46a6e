"""Tells somebody, by a command or a webhook, that a workload failed or an experiment ended.

A command gets the notice as JSON on its standard input, and `EVENT_VARIABLE` and `TEXT_VARIABLE`
in its environment. A webhook gets the same JSON by POST; ``text`` is what Slack, Mattermost and
Teams show of it, ``content`` what Discord does.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from radt import units
from radt.errors import UsageError
from radt.experiment.plan import WorkloadPlan
from radt.masking import masked
from radt.model import RunStatus
from radt.runner.outcome import ExperimentOutcome, WorkloadOutcome

EVENT_VARIABLE = "RADT_NOTIFY_EVENT"
TEXT_VARIABLE = "RADT_NOTIFY_TEXT"
COMMAND_TIMEOUT_S = 60.0
#: How long the end of an experiment waits for notices that are under way.
CLOSE_TIMEOUT_S = 15.0

#: Webhooks carry their secret in the path; only the host is ever shown.
_ADDRESS = re.compile(
    r"(https?://)(?:\S*@)?([^\s/?#'\"]+)[^\s'\"]*?(?=[:,.;)]*(?:[\s'\"]|$))", re.IGNORECASE
)


class NoticeEvent(StrEnum):
    """What a notice is about."""

    FAILED = "failed"  # a workload, with runs that did not finish
    ENDED = "ended"  # the experiment, however it ended


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth telling.

    ``text`` is for people; ``counts`` are numbers of runs by status; ``file`` is the experiment's.
    """

    event: NoticeEvent
    experiment: str
    text: str
    counts: Mapping[str, int]
    elapsed_s: float
    file: str
    host: str = field(default_factory=socket.gethostname)

    @classmethod
    def of_workload(cls, plan: WorkloadPlan, outcome: WorkloadOutcome, file: str) -> Notice:
        """A workload had runs that did not finish."""
        counts = Counter(run.status for run in outcome.runs)
        label = plan.label or ", ".join(dict.fromkeys(run.label for run in plan.runs))
        bad = _numbers({status: n for status, n in counts.items() if status != "FINISHED"})
        return cls(
            event=NoticeEvent.FAILED,
            experiment=plan.experiment,
            text=f"{plan.experiment}: workload {label} had {bad} ({_rows(plan)})",
            counts=_by_name(counts),
            elapsed_s=outcome.elapsed_s,
            file=file,
        )

    @classmethod
    def of_experiment(
        cls, experiment: str, outcome: ExperimentOutcome, file: str, problem: str = ""
    ) -> Notice:
        """The experiment has ended; ``problem`` is why radt itself could not go on."""
        how = "ended"
        if problem:
            how = f"stopped by a problem ({without_secrets(problem)})"
        elif outcome.interrupted_by is not None:
            how = f"was stopped by {signal.Signals(outcome.interrupted_by).name}"
        numbers = _numbers(outcome.counts) or "no run"
        return cls(
            event=NoticeEvent.ENDED,
            experiment=experiment,
            text=f"{experiment} {how} after {units.duration(outcome.elapsed_s)}: {numbers}",
            counts=_by_name(outcome.counts),
            elapsed_s=outcome.elapsed_s,
            file=file,
        )

    def to_json(self) -> bytes:
        """What commands and webhooks get."""
        text = json.dumps(asdict(self) | {"content": self.text}, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")  # undecodable file names: JSON's escapes


class Notifier:
    """Sends notices from a thread of its own: it never delays or fails the experiment.

    Args:
        target: A command line, or an http(s) address. Empty: nothing is sent.
        say: Told, once, why a notice could not be sent; called from any thread.

    Raises:
        UsageError: The target is neither, or the command is not there.
    """

    def __init__(self, target: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = False
        self._waiting: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._command: Command | None = None
        self._deliver: Callable[[Notice], None] | None = None
        if not (target := target.strip()):
            return
        if target.lower().startswith(("http://", "https://")):
            from radt.runner.webhook import Webhook  # http and ssl, and only needed here

            self._deliver = Webhook(target).deliver
        else:
            self._command = Command(target)
            self._deliver = self._command.deliver

    def send(self, notice: Notice) -> None:
        """Send it in the background; they are sent one after another."""
        if self._deliver is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notices", daemon=True)
            self._thread.start()
        self._waiting.put(notice)

    def close(self) -> None:
        """Wait for what is being sent, at most `CLOSE_TIMEOUT_S`; what takes longer is dropped."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._complain(f"was not sent within {CLOSE_TIMEOUT_S:.0f} s")
            if self._command is not None:
                self._command.stop()
        self._thread = None

    def _work(self) -> None:
        assert self._deliver is not None
        while (notice := self._waiting.get()) is not None:
            try:
                self._deliver(notice)
            except NotSentError as error:
                self._complain(str(error))
            except Exception as error:  # noqa: BLE001 - the next notice must still be sent
                self._complain(f"was not sent: {type(error).__name__}: {error}")

    def _complain(self, what: str) -> None:
        if not self._said:
            self._said = True
            self._say(f"a notice {without_secrets(what)}")


class NotSentError(Exception):
    """Why a notice did not arrive, to be read after "a notice"."""


class Command:
    """A program that is given notices.

    Raises:
        UsageError: The command line cannot be understood or its program is not there.
    """

    def __init__(self, line: str) -> None:
        try:
            self._arguments = shlex.split(line)
        except ValueError as error:
            raise UsageError(
                f"the command of --notify cannot be understood: {error}", "Quote as in a shell"
            ) from error
        program = self._arguments[0]
        if shutil.which(program) is None:
            raise UsageError(
                f"the command of --notify is not there: {without_secrets(program)}",
                "Give an executable on PATH with its arguments, or an http(s) address",
            )
        self._process: subprocess.Popen[bytes] | None = None

    def deliver(self, notice: Notice) -> None:
        """Run it to its end, in a session of its own: Ctrl-C is not for it."""
        name = without_secrets(self._arguments[0])
        variables = {EVENT_VARIABLE: str(notice.event), TEXT_VARIABLE: notice.text}
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(os.environ, **variables),
                start_new_session=True,
            )
        except OSError as error:
            raise NotSentError(f"was not sent: {name}: {error.strerror}") from error
        try:
            _, output = self._process.communicate(notice.to_json(), COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.stop()
            self._process.communicate()
            raise NotSentError(
                f"was not sent: {name} took longer than {COMMAND_TIMEOUT_S:.0f} s"
            ) from error
        if code := self._process.returncode:
            lines = output.decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise NotSentError(f"was not sent: {name}: {how}{f', {last}' if last else ''}")

    def stop(self) -> None:
        """End it and what it has started; harmless if it has ended."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended by itself in the meantime


def without_secrets(text: str) -> str:
    """The text with nothing but the host of each web address in it.

    >>> without_secrets("curl https://me:pw@hooks.example.org/T0/secret?a=b failed")
    'curl https://hooks.example.org/… failed'
    """
    return masked(_ADDRESS.sub(r"\1\2/…", text))


def _numbers(counts: Mapping[RunStatus, int]) -> str:
    """``2 FAILED and 1 OOM``."""
    parts = [f"{counts[status]:,} {status}" for status in RunStatus if counts.get(status)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _by_name(counts: Mapping[RunStatus, int]) -> dict[str, int]:
    return {str(status): counts[status] for status in RunStatus if counts.get(status)}


def _rows(plan: WorkloadPlan) -> str:
    """``7 × resnet50 on GPU 0``, ``2 × a, b on GPUs 0, 1+2``."""
    names = Counter(run.label for run in plan.runs)
    devices = dict.fromkeys(str(run.devices) for run in plan.runs)
    gpus = [device for device in devices if device != "cpu"]
    several = len(gpus) > 1 or any("+" in device for device in gpus)
    places = [f"GPU{'s' if several else ''} {', '.join(gpus)}"] if gpus else []
    if "cpu" in devices:
        places.append("the CPU")
    runs = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
    return f"{runs} on {' and '.join(places)}"
