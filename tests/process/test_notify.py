"""Notifications by command and address: real commands, a real server."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from radt.errors import UsageError
from radt.masking import masked_addresses
from radt.model import RunStatus
from radt.runner import notify
from radt.runner.notify import Notification, NotificationEvent, Notifier
from radt.runner.outcome import ExperimentOutcome
from radt.runner.progress import RowProgress, WorkloadProgress
from tests.support.bench import alive, wait_until

NOTIFICATION = Notification(
    event=NotificationEvent.FAILED,
    experiment="collocation",
    text="collocation: workload drei Öfen had 1 OOM",
    counts={"FINISHED": 6, "OOM": 1},
    elapsed_s=61.5,
    file="/home/me/my runs/a.csv",
    host="gpu1",
)


@dataclass
class Hook:
    """A server that keeps what is posted, and answers as it is told to."""

    server: ThreadingHTTPServer
    answer: int = 200
    location: str = ""
    hold: threading.Event | None = None
    posted: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/T0/geheim?key=pssst"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long; tests that are about this leave less time."""
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 180.0)
    monkeypatch.setattr(notify, "CLOSE_TIMEOUT_S", 180.0)


@pytest.fixture
def hook() -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.posted.append((self.path, dict(self.headers), json.loads(body)))
            if made.hold is not None:
                made.hold.wait()
            self.send_response(made.answer)
            if made.location:
                self.send_header("Location", made.location)
            self.end_headers()

        def do_GET(self) -> None:
            pytest.fail("a redirect was followed")

        def log_message(self, *_: object) -> None:
            pass

    made = Hook(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    made.server.daemon_threads = True
    thread = threading.Thread(target=made.server.serve_forever, args=(0.02,))
    thread.start()
    yield made
    if made.hold is not None:
        made.hold.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@dataclass
class Complaints:
    """What a notifier complains of."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Make an executable shell script; its path, quoted for a command line."""

    def make(body: str) -> str:
        path = tmp_path / "my command"
        path.write_text(f"#!/bin/sh\ncd '{tmp_path}'\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return f"'{path}'"

    return make


def test_command_gets_arguments_json_and_variables(
    tmp_path: Path, complaints: Complaints, script: Callable[[str], str]
) -> None:
    command = script(
        'cat > "$1.json"\n'
        'printf "%s|%s|%s" "$RADT_NOTIFY_EVENT" "$RADT_NOTIFY_TEXT" "$2" > "$1.txt"'
    )
    notifier = Notifier(f"{command} 'the notice' '$HOME; *'", complaints)
    notifier.send(NOTIFICATION)
    notifier.close()
    assert complaints.lines == []
    assert (tmp_path / "the notice.txt").read_text(encoding="utf-8") == (
        f"failed|{NOTIFICATION.text}|$HOME; *"
    )
    text = (tmp_path / "the notice.json").read_text(encoding="utf-8")
    assert "drei Öfen" in text  # readable for commands that search it
    assert json.loads(text) == {
        "event": "failed",
        "experiment": "collocation",
        "text": NOTIFICATION.text,
        "counts": {"FINISHED": 6, "OOM": 1},
        "elapsed_s": 61.5,
        "host": "gpu1",
        "file": "/home/me/my runs/a.csv",
    }


def test_notices_come_in_their_order(
    tmp_path: Path, complaints: Complaints, script: Callable[[str], str]
) -> None:
    notifier = Notifier(script('echo "$RADT_NOTIFY_TEXT" >> all'), complaints)
    for number in range(5):
        notifier.send(replace(NOTIFICATION, text=str(number)))
    notifier.close()
    assert (tmp_path / "all").read_text(encoding="utf-8").split() == ["0", "1", "2", "3", "4"]


def test_command_that_fails_is_said_once_with_its_reason(
    tmp_path: Path, complaints: Complaints, script: Callable[[str], str]
) -> None:
    notifier = Notifier(
        script("echo x >> tries\necho 'no route to https://me:pw@h.org/T0/geheim' >&2\nexit 7"),
        complaints,
    )
    notifier.send(NOTIFICATION)
    notifier.send(NOTIFICATION)
    notifier.close()
    assert complaints.lines == [
        f"a notification was not sent: {tmp_path}/my command: exit code 7, no route to https://h.org/***"
    ]
    assert (tmp_path / "tries").read_text(encoding="utf-8") == "x\nx\n"


def test_command_that_reads_nothing_and_one_that_was_removed(
    tmp_path: Path, complaints: Complaints, script: Callable[[str], str]
) -> None:
    big = replace(NOTIFICATION, file="x" * 1_000_000)  # more than a pipe holds
    notifier = Notifier(script("exec <&-"), complaints)
    notifier.send(big)
    notifier.close()
    assert complaints.lines == []
    (tmp_path / "my command").unlink()
    notifier.send(NOTIFICATION)
    notifier.close()
    assert complaints.lines == [
        f"a notification was not sent: {tmp_path}/my command: No such file or directory"
    ]


def test_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path,
    complaints: Complaints,
    script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "CLOSE_TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pids")
    command = script("sleep 600 &\necho $$ $! > pids\nwait")
    notifier = Notifier(command, complaints)
    notifier.send(NOTIFICATION)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="ascii").split()]
    assert all(alive(pid) for pid in pids)
    notifier.close()
    assert complaints.lines[0] == "a notification was not sent: no answer within 0 s"
    wait_until(lambda: not any(alive(pid) for pid in pids), "the command and its child are gone")


def test_after_a_command_that_hangs_at_the_end_no_other_starts(
    tmp_path: Path,
    complaints: Complaints,
    script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "CLOSE_TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "begun")
    notifier = Notifier(
        script(
            'echo "$RADT_NOTIFY_EVENT" >> tries\n'
            '[ "$RADT_NOTIFY_EVENT" = ended ] && exit\n'
            "echo > begun\nexec sleep 600"
        ),
        complaints,
    )
    notifier.send(NOTIFICATION)
    notifier.send(replace(NOTIFICATION, event=NotificationEvent.ENDED))
    assert notifier._thread is not None
    thread = notifier._thread
    (tmp_path / "begun").read_bytes()
    notifier.close()
    wait_until(lambda: not thread.is_alive(), "the end of the thread")
    assert (tmp_path / "tries").read_text(encoding="utf-8") == "failed\n"


def test_command_that_takes_too_long_makes_way_for_the_next(
    tmp_path: Path,
    complaints: Complaints,
    script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def complain(line: str) -> None:
        complaints(line)
        # The next one has the time that it needs.
        monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 180.0)

    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.2)
    notifier = Notifier(
        script('[ "$RADT_NOTIFY_EVENT" = ended ] && exec touch done\nsleep 600'), complain
    )
    notifier.send(NOTIFICATION)
    notifier.send(replace(NOTIFICATION, event=NotificationEvent.ENDED))
    notifier.close()
    assert (tmp_path / "done").exists()
    assert complaints.lines == [
        f"a notification was not sent: {tmp_path}/my command took longer than 0 s"
    ]


@pytest.mark.parametrize("scheme", ["http", "json"])
def test_address_gets_title_and_text(hook: Hook, complaints: Complaints, scheme: str) -> None:
    address = f"{scheme}{hook.address[4:]}".replace("127", "me%40x:p%2Fw@127")
    if scheme == "json":  # as apprise marks what goes into the query
        address = address.replace("?", "?-")
    notifier = Notifier(address, complaints)
    notifier.send(replace(NOTIFICATION, file="/a\udcff.csv"))
    notifier.close()
    assert complaints.lines == []
    ((path, headers, body),) = hook.posted
    assert (path, headers["Content-Type"]) == ("/T0/geheim?key=pssst", "application/json")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me@x:p/w"
    assert (body["title"], body["message"]) == ("radt: collocation failed", NOTIFICATION.text)


@pytest.mark.parametrize("answer", [500, 302])
def test_address_that_refuses_is_reported_once_without_its_secret(
    hook: Hook, complaints: Complaints, answer: int
) -> None:
    hook.answer, hook.location = answer, hook.address
    notifier = Notifier(hook.address, complaints)
    notifier.send(NOTIFICATION)
    notifier.send(NOTIFICATION)
    notifier.close()
    (line,) = complaints.lines
    host = f"http://127.0.0.1:{hook.server.server_address[1]}/***"
    assert line.startswith(f"a notification was not sent: {host}: ")
    assert str(answer) in line
    assert "geheim" not in line
    assert len(hook.posted) == 2


def test_address_that_does_not_answer(complaints: Complaints) -> None:
    with socket.socket() as taken:  # bound and not listening: refused for sure
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        notifier = Notifier(f"http://me:pw@127.0.0.1:{port}/geheim", complaints)
        notifier.send(NOTIFICATION)
        notifier.close()
    (line,) = complaints.lines
    assert line.startswith(f"a notification was not sent: http://127.0.0.1:{port}/***: ")
    assert "onnection error" in line


def test_address_that_hangs_delays_nobody(
    hook: Hook, complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.hold = threading.Event()
    monkeypatch.setattr(notify, "CLOSE_TIMEOUT_S", 0.2)
    notifier = Notifier(hook.address, complaints)
    notifier.send(NOTIFICATION)  # returns at once: the server has not answered
    wait_until(lambda: hook.posted, "the notification is being sent")
    notifier.send(NOTIFICATION)
    notifier.close()
    assert complaints.lines == ["a notification was not sent: no answer within 0 s"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no-such-command --x", "Command 'no-such-command' of --notify not found"),
        ("sh 'unfinished", "No closing quotation"),
        ("https://", "Expected an address in --notify, got https://"),
        ("http://host:port/geheim", "Expected an address in --notify, got http://host:port/***"),
        ("https://host/ge heim", "Expected an address in --notify, got https://host/***"),
        ("nosuch://geheim/geheim", "Expected an address in --notify, got nosuch://***"),
    ],
)
def test_wrong_target_is_refused_before_anything_starts(
    complaints: Complaints, target: str, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Notifier(target, complaints)
    assert message in str(raised.value)
    assert "geheim" not in str(raised.value)


def test_address_without_apprise_is_refused(
    complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(UsageError, match="needs apprise") as raised:
        Notifier("slack://a/b/c", complaints)
    assert "pip install 'radt[notify]'" in str(raised.value.remedy)


@pytest.mark.parametrize("target", ["", "  "])
def test_without_a_target_nothing_is_sent(complaints: Complaints, target: str) -> None:
    notifier = Notifier(target, complaints)
    before = set(threading.enumerate())
    notifier.send(NOTIFICATION)
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    notifier.close()
    assert complaints.lines == []


def test_of_an_address_only_the_host_is_shown() -> None:
    assert masked_addresses("slack://xoxb-1/2/3, x") == "slack://***, x"
    text = "curl -u a https://me:p@ss@hooks.org:8/T0/geheim?x#y 'http://b.org' (https://c.org/d)"
    assert masked_addresses(text) == (
        "curl -u a https://hooks.org:8/*** 'http://b.org/***' (https://c.org/***)"
    )


# Texts ---------------------------------------------------------------------------------------


def outcome_of(place: str, *rows: tuple[str, RunStatus]) -> WorkloadProgress:
    runs = [RowProgress("a", name, status) for name, status in rows]
    return WorkloadProgress("collocation", "3", runs, place=place, elapsed_s=61.0)


def test_failed_workload_in_plain_words() -> None:
    rows = [("resnet50", RunStatus.FINISHED)] * 6 + [("resnet50", RunStatus.OOM)]
    notice = Notification.of_workload(outcome_of("0", *rows), "/a.csv")
    assert notice.text == "collocation: workload 3 had 1 OOM (7 × resnet50 on 0)"
    assert notice.event is NotificationEvent.FAILED
    assert notice.counts == {"FINISHED": 6, "OOM": 1}
    assert (notice.elapsed_s, notice.host) == (61.0, socket.gethostname())


@pytest.mark.parametrize("place", ["0, 1+2, cpu", ""])
def test_failed_workload_of_many_kinds_in_plain_words(place: str) -> None:
    outcome = outcome_of(
        place,
        *[("a", RunStatus.FAILED), ("b", RunStatus.KILLED)],
        *[("b", RunStatus.TIMEOUT), ("c", RunStatus.TIMEOUT)],
    )
    where = f" on {place}" if place else ""
    assert Notification.of_workload(outcome, "/a.csv").text == (
        f"collocation: workload 3 had 1 FAILED, 1 KILLED and 2 TIMEOUT (a, 2 × b, c{where})"
    )


@pytest.mark.parametrize(
    ("interrupted_by", "problem", "how"),
    [
        (None, "", "ended"),
        (signal.SIGTERM, "", "was stopped by SIGTERM"),
        (None, "no space in sqlite://me:pw@db", "was stopped by an error (no space in sqlite://***)"),
    ],
)  # fmt: skip
def test_end_of_an_experiment_in_plain_words(
    interrupted_by: int | None, problem: str, how: str
) -> None:
    outcome = ExperimentOutcome(
        [outcome_of("0", ("a", RunStatus.FINISHED), ("b", RunStatus.OOM))],
        elapsed_s=7509.0,
        interrupted_by=interrupted_by,
    )
    notice = Notification.of_experiment("collocation", outcome, "/a.csv", problem)
    assert notice.text == f"collocation {how} after 2:05:09: 1 FINISHED and 1 OOM"
    assert notice.event is NotificationEvent.ENDED


def test_end_of_an_experiment_in_which_nothing_ran() -> None:
    notice = Notification.of_experiment(
        "x", ExperimentOutcome(elapsed_s=0.4), "/a.csv", "no collector"
    )
    assert notice.text == "x was stopped by an error (no collector) after 400 ms: no run"
    assert notice.counts == {}
