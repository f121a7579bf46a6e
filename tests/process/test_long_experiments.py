"""Experiments that run for days: seen, stopped and left alone from other terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from radt.experiment.lock import ExperimentLock, Holder
from radt.runner.live import ending_text, progress_line
from radt.runner.local_watch import SHOWN_LINES
from radt.runner.progress import ProgressView, remaining_s
from radt.runner.supervisor import exit_code, last_line
from tests.support.bench import RADT, TIMEOUT_S, Bench, alive, stop_collectors, wait_until

#: Logs, says so, and waits until the test writes into the pipe; then ends with that exit code.
HELD = """\
import sys, radt
with radt.Run() as run:
    for epoch in run.epochs(7):
        run.log_metric("loss", 0.25, epoch)
        print("at work", flush=True)
        open(sys.argv[1] + ".at-work", "w").close()
        code = int(open(sys.argv[1]).read())
        break
sys.exit(code)
"""
QUICK = "print('quick')\n"

STUDY = """\
Experiment,Workload,Name,Status,Run,Devices,Listeners,File,Params
study,first,quick,,,cpu,none,quick.py,
study,second,left,,,cpu,none,held.py,left.pipe
study,second,right,,,cpu,none,held.py,right.pipe
study,third,quick,,,cpu,none,quick.py,
"""
ONE = "Experiment,Workload,Devices,Listeners,File,Params\nstudy,1,cpu,none,held.py,a.pipe\n"


@pytest.fixture
def study(bench: Bench) -> Path:
    bench.script("quick.py", QUICK)
    bench.script("held.py", HELD)
    for name in ("left.pipe", "right.pipe"):
        bench.signal_ready(name)
    return bench.experiment(STUDY, "my study.csv")


@pytest.fixture
def one(bench: Bench) -> Iterator[Path]:
    """An experiment of one run, which is ended if the test has left it in the background."""
    path = make_one(bench)
    yield path
    if (holder := ExperimentLock(path).holder()) is not None:
        os.kill(holder.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A detached experiment at work, started in a terminal that was closed then."""
    folder = tmp_path_factory.mktemp("user's folder")
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime:
        env = dict(os.environ, NO_COLOR="1", COLUMNS="100", RADT_COLLECTOR_IDLE_S="2")
        env["RADT_RUNTIME_DIR"] = runtime
        env.pop("RADT_HOME", None)
        bench = Bench(folder, env)
        path = make_one(bench)
        bench.script(
            "held.py", HELD.replace("        print", "        print('x\\n' * 1000)\n        print")
        )
        said, shell = detach_in_a_terminal(bench, path)
        holder = wait_at_work(bench, path)
        log = Path(holder.log)
        # What a run prints comes there by way of its runner.
        wait_until(lambda: "at work" in log.read_text(encoding="utf-8"), "its output is in the log")
        yield Background(bench, path, holder, said, shell)
        os.kill(holder.pid, signal.SIGKILL)
        for process in bench.started:
            process.kill()
            process.communicate()
        stop_collectors(Path(runtime))


@dataclass(frozen=True)
class Background:
    """``said`` is what ``radt FILE --detach`` printed, ``shell`` the session that it ran in."""

    bench: Bench
    path: Path
    holder: Holder
    said: str
    shell: int


def detach_in_a_terminal(bench: Bench, path: Path) -> tuple[str, int]:
    """As over SSH: when the terminal is closed, the kernel sends SIGHUP to what runs in it."""
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(bench.folder)
        os.execvpe("sh", ["sh", "-c", f"'{RADT}' {path.name} --detach; echo end; cat"], bench.env)
    said = b""
    while b"end\r\n" not in said:
        said += os.read(terminal, 65536)
    os.close(terminal)
    os.waitpid(shell, 0)
    return said.decode().replace("\r\n", "\n"), shell


def make_one(bench: Bench) -> Path:
    bench.script("held.py", HELD)
    bench.signal_ready("a.pipe")
    return bench.experiment(ONE, "one.csv")


def release(bench: Bench, pipe: str, code: int = 0) -> None:
    (bench.folder / pipe).write_text(f"{code}\n")


def status(bench: Bench, path: Path) -> dict[str, Any]:
    document = json.loads(bench.shown("status", path.name, "--json"))
    assert isinstance(document, dict)
    return document


def states(document: dict[str, Any]) -> list[str]:
    return [workload["state"] for workload in document["workloads"]]


def losses(document: dict[str, Any]) -> list[float | None]:
    runs = [run for workload in document["workloads"] for run in workload["runs"]]
    return [run["metrics"].get("loss") for run in runs if run["status"] == "RUNNING"]


def wait_at_work(bench: Bench, path: Path, runs: int = 1) -> Holder:
    """Return when so many runs log, with who runs them."""
    marks = bench.folder.glob
    wait_until(lambda: len(list(marks("*.at-work"))) == runs, "runs at work")
    holder = ExperimentLock(path).holder()
    assert holder is not None
    return holder


# -- radt status -----------------------------------------------------------------------------------


def test_status_shows_what_runs_what_is_done_and_what_is_next(bench: Bench, study: Path) -> None:
    assert states(status(bench, study)) == ["next", "waiting", "waiting"]
    assert "my study.csv' starts with workload first" in bench.shown("status", study.name)
    runner = bench.start(study.name)
    wait_at_work(bench, study, runs=2)
    wait_until(lambda: losses(status(bench, study)) == [0.25, 0.25], "values to show")

    document = status(bench, study)
    assert document["running"] is True
    assert document["holder"]["pid"] == runner.pid
    assert states(document) == ["done", "running", "next"]
    progress = document["progress"]
    assert (progress["workloads_done"], progress["workloads_total"]) == (1, 3)
    assert progress["remaining_s"] > 0, "estimated from the first workload"
    (left, _) = document["workloads"][1]["runs"]
    assert (left["name"], left["epoch"], left["epochs"]) == ("left", 1, 7)

    bench.env["COLUMNS"] = "80"
    text = bench.shown("status", study.name)
    assert max(map(len, text.splitlines())) <= 80
    for pattern in (
        r"^study · my study.csv · 3 workloads, 4 runs · running since \d\d:\d\d:\d\d$",
        rf"^  process {runner.pid} of ",
        r"^  1/3  first      1 run     ✔ ",
        r"^  2/3  second     2 runs    ▶ \d\d:\d\d",
        r"^       b  right  ▶ \d\d:\d\d  epoch 1/7  loss 0.250",
        r"^  3/3  third      1 run     · next$",
        r"  1/3 workloads  \d\d:\d\d  about .* left",
    ):
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)

    for pipe in ("left.pipe", "right.pipe"):
        release(bench, pipe)
    assert runner.wait(TIMEOUT_S) == 0
    after = bench.shown("status", study.name)
    assert "not running" in after and after.count("✔") == 3
    assert status(bench, study)["progress"] is None


@pytest.mark.long
def test_a_runner_that_was_killed(bench: Bench, study: Path) -> None:
    bench.radt(study.name, "--detach")
    holder = wait_at_work(bench, study, runs=2)
    watcher = bench.start("attach", study.name)
    assert watcher.stdout is not None
    while "at work" not in next(watcher.stdout):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    rest, _ = watcher.communicate(timeout=TIMEOUT_S)
    assert watcher.returncode == 128 + signal.SIGKILL
    assert "radt: killed by signal 9 at" in rest
    document = status(bench, study)
    assert (document["running"], states(document)) == (False, ["done", "interrupted", "waiting"])
    text = bench.shown("status", study.name)
    assert "✘ interrupted" in text and "resumes with workload second" in text


@pytest.mark.long
def test_status_counts_repeats_and_leaves_out_what_was_not_chosen(
    bench: Bench, study: Path
) -> None:
    bench.script("quick.py", "import os; os.kill(os.getpid(), 9)")
    runner = bench.start(study.name, "--repeat", "2", "--only", "first,second")
    wait_at_work(bench, study, runs=2)
    document = status(bench, study)
    assert states(document) == ["done", "running", "left out"], "what was killed is not tried again"
    assert document["progress"]["workloads_total"] == 3
    text = bench.shown("status", study.name)
    assert "second 1/2" in text and re.search(r"first 0/2 .*✘ KILLED: .*", text)
    release(bench, "left.pipe", 3)
    release(bench, "right.pipe", 0)
    assert runner.wait(TIMEOUT_S) == 1
    assert [one["repeats_done"] for one in status(bench, study)["workloads"]] == [0, 0, 0]


@pytest.mark.long
def test_status_without_the_collector_reads_the_store(background: Background) -> None:
    """Of another user's runner, or another machine's, the store is all that can be seen."""
    bench = background.bench
    with tempfile.TemporaryDirectory() as elsewhere:
        other = Bench(bench.folder, bench.env | {"RADT_RUNTIME_DIR": elsewhere})
        wait_until(lambda: losses(status(other, background.path)) == [0.25], "values in the store")
        assert list(Path(elsewhere).iterdir()) == [], "no collector is started to look"


@pytest.mark.long
def test_status_of_a_runner_on_another_machine(bench: Bench, one: Path) -> None:
    held = {"pid": 1, "host": "far", "user": "ann", "since": "2026-01-02T03:04:05+00:00"}
    ExperimentLock(one).path.write_text(json.dumps(held | {"command": "radt one.csv"}))
    text = bench.shown("status", one.name)
    assert "process 1 of ann on far" in text and "running since 2026-01-02" in text
    stop = bench.radt("stop", one.name, code=2)
    assert "On far: radt stop one.csv" in stop.stderr


def test_status_of_a_file_with_problems_says_so(bench: Bench) -> None:
    path = bench.experiment("Workload,File\n1,absent.py\n")
    assert "1 problem" in bench.shown("status", path.name)
    bench.radt("status", "absent.csv", code=2)


# -- radt stop -------------------------------------------------------------------------------------


def test_stop_ends_a_run_as_ctrl_c_does_and_waits_for_it(bench: Bench, one: Path) -> None:
    runner = bench.start(one.name)
    wait_at_work(bench, one)
    (bench.folder / "radt.toml").write_text("no TOML")  # a stop needs no settings
    done = bench.radt("stop", one.name)
    assert "was stopped in" in done.stderr
    assert ExperimentLock(one).holder() is None
    assert runner.wait(TIMEOUT_S) == 128 + signal.SIGINT
    assert bench.rows(one)[0]["Status"] == "KILLED: stopped by the user"
    assert "is not running" in bench.radt("stop", one.name).stderr


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("detached", [False, True])
def test_hints_resume_with_all_options_of_the_start(
    bench: Bench, one: Path, *, detached: bool
) -> None:
    options = ["--repeat", "2", "--only", "1", "--max-time", "1h"]
    detach = ["--detach"] if detached else []
    resumed = shlex.join([one.name, *options, *detach])
    if detached:
        bench.radt(one.name, *options, *detach)
    else:
        bench.start("run", one.name, *options)
    wait_at_work(bench, one)
    done = bench.radt("stop", one.name)
    assert f"radt {resumed} resumes it" in done.stderr
    shown = bench.shown("status", one.name)
    assert f"radt {resumed} resumes with workload 1" in shown
    if detached:
        (log,) = bench.home.glob("logs/*.log")
        assert f"radt run {resumed}" in log.read_text(encoding="utf-8")
    bench.script(Path(bench.rows(one)[0]["File"]).name, "")
    bench.radt(one.name)
    assert bench.rows(one)[0]["Status"] == "FINISHED 2/2"


@pytest.mark.long
def test_status_leaves_out_only_where_those_workloads_are_done(bench: Bench) -> None:
    bench.script("quick.py", "")
    path = bench.experiment("Workload,File,Listeners\n1,quick.py,none\n2,quick.py,none\n")
    bench.radt(path.name, "--only", "2", "--repeat", "2")
    shown = bench.shown("status", path.name)
    assert f"radt {path.name} --repeat 2 resumes with workload 1" in shown


STUBBORN = """\
import os, signal, time, radt
heard = open("heard.txt", "a", buffering=1)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: heard.write(f"{number}\\n"))
with radt.Run() as run:
    open("stubborn.at-work", "w").close()
    while True:
        time.sleep(0.1)
"""


@pytest.mark.long
def test_stop_now_does_not_wait_for_stubborn_runs(bench: Bench, one: Path) -> None:
    bench.script("held.py", STUBBORN)
    runner = bench.start(one.name)
    wait_at_work(bench, one)
    bench.radt("stop", one.name, "--now")
    assert runner.wait(TIMEOUT_S) == 128 + signal.SIGINT
    heard = (bench.folder / "heard.txt").read_text().split()
    assert str(int(signal.SIGTERM)) not in heard, "that comes only after ten seconds of grace"


def test_stop_reaches_a_background_job_that_has_sigint_switched_off(
    bench: Bench, one: Path
) -> None:
    runner = subprocess.Popen(
        [RADT, one.name],
        cwd=bench.folder,
        env=bench.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    bench.started.append(runner)
    wait_at_work(bench, one)
    bench.radt("stop", one.name)
    assert runner.wait(TIMEOUT_S) == 128 + signal.SIGTERM


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_stop_of_another_users_runner_says_what_to_do() -> None:
    with tempfile.TemporaryDirectory(prefix="radt-") as name:
        Path(name).chmod(0o755)
        path = Path(name) / "one.csv"
        path.write_text("File\nx.py\n")
        with ExperimentLock(path):
            # What it needs is imported as root: Python itself may lie where nobody else can read.
            code = "import os, sys, radt.cli, radt.cli.stop; os.setuid(65534)\nradt.cli.main()"
            done = subprocess.run(
                [sys.executable, "-c", code, "stop", str(path)],
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
                cwd="/",
            )
    assert done.returncode == 2
    assert f"sudo radt stop {path}" in done.stderr


# -- radt FILE --detach, radt attach ---------------------------------------------------------------


def test_a_detached_experiment_survives_the_end_of_its_terminal(background: Background) -> None:
    assert os.getsid(background.holder.pid) != background.shell
    assert alive(background.holder.pid)
    assert background.bench.rows(background.path)[0]["Status"] == "RUNNING"


def test_what_detach_says(background: Background) -> None:
    for command in ("radt status one.csv", "radt attach one.csv", "radt stop one.csv"):
        assert command in background.said
    log, home = Path(background.holder.log), background.bench.home
    assert log.parent == home / "logs" and log.name.startswith("one-")
    assert str(log.relative_to(home.parent)) in background.said
    assert f"pid {background.holder.pid}" in background.said


@pytest.mark.long
def test_a_second_start_is_refused(background: Background) -> None:
    done = background.bench.radt("one.csv", "--detach", code=3)
    assert f"being run by process {background.holder.pid}" in done.stderr
    assert "stop it: radt stop one.csv" in done.stderr


def test_ctrl_c_leaves_an_attached_experiment_alone(background: Background) -> None:
    watcher = background.bench.start("attach", "one.csv")
    assert watcher.stdout is not None
    lines = [next(watcher.stdout)]
    while "at work" not in lines[-1]:
        lines.append(next(watcher.stdout))
    assert lines[0] == f"  … see {background.holder.log} for earlier output\n"
    assert len(lines) == SHOWN_LINES + 1, "it begins with the last lines"
    watcher.send_signal(signal.SIGINT)
    rest, _ = watcher.communicate(timeout=TIMEOUT_S)
    assert watcher.returncode == 0 and "the experiment continues" in rest
    assert alive(background.holder.pid)
    assert background.bench.rows(background.path)[0]["Status"] == "RUNNING"


def test_detach_shows_the_problems_of_a_file_at_once(bench: Bench) -> None:
    bench.experiment("Workload,File\n1,absent.py\n", "bad.csv")
    done = bench.radt("bad.csv", "--detach", code=2)
    assert "bad.csv: 1 problem, nothing was started" in done.stderr
    assert not (bench.home / "radt.db").exists()
    bench.script("x.py", "")
    assert "--detach is for experiment files" in bench.radt("--detach", "x.py", code=2).stderr


def test_attach_shows_the_output_and_ends_with_the_runner(bench: Bench, one: Path) -> None:
    bench.radt(one.name, "--detach")
    wait_at_work(bench, one)
    watcher = bench.start("attach", one.name)
    assert watcher.stdout is not None
    shown = [next(watcher.stdout)]
    while "at work" not in shown[-1]:
        shown.append(next(watcher.stdout))
    release(bench, "a.pipe", 3)
    rest, _ = watcher.communicate(timeout=TIMEOUT_S)
    assert watcher.returncode == 1
    assert "FAILED: exit code 3" in rest
    assert exit_code(rest.splitlines()[-1]) == 1
    assert "OOM and TIMEOUT rows again" in bench.radt(one.name, "--detach", code=1).stdout, (
        "nothing to run"
    )
    after = bench.radt("attach", one.name, code=2)
    assert "one.csv is not running" in after.stderr and "logs/one-" in after.stderr


@pytest.mark.long
def test_attach_goes_on_without_the_output_that_was_removed(bench: Bench, one: Path) -> None:
    bench.radt(one.name, "--detach")
    wait_at_work(bench, one)
    watcher = bench.start("attach", one.name)
    assert watcher.stdout is not None
    while "at work" not in next(watcher.stdout):
        pass
    for log in (bench.home / "logs").iterdir():
        log.unlink()
    release(bench, "a.pipe", 0)
    rest, errors = watcher.communicate(timeout=TIMEOUT_S)
    assert watcher.returncode == 0, errors
    assert "ended; exit code unknown" in rest


@pytest.mark.long
def test_a_runner_with_a_terminal_of_its_own_can_be_attached_to(bench: Bench, one: Path) -> None:
    runner = bench.start(one.name)
    wait_at_work(bench, one)
    watcher = bench.start("attach", one.name)
    assert watcher.stdout is not None
    assert "prints to its own terminal" in next(watcher.stdout)
    release(bench, "a.pipe")
    rest, _ = watcher.communicate(timeout=TIMEOUT_S)
    assert (runner.wait(TIMEOUT_S), watcher.returncode) == (0, 0)
    assert "exit code unknown" in rest


def test_how_a_runner_ended_is_read_from_its_last_line() -> None:
    assert [exit_code(last_line(code)) for code in (0, 3, -9)] == [0, 3, 137]
    assert exit_code("  a │ radt: ended with exit code 0 at 2026-01-02 03:04:05") is None


# -- the estimated end -----------------------------------------------------------------------------


def test_the_end_is_estimated_from_repeats_first_and_else_from_the_others() -> None:
    assert remaining_s(["a", "b"], {}) is None
    assert remaining_s([], {}) == 0
    taken = {"a": [10.0, 20.0], "b": [100.0]}
    assert remaining_s(["a"], taken) == 15
    assert remaining_s(["b", "a"], taken) == 115
    assert remaining_s(["c"], taken) == (15 + 100) / 2
    assert remaining_s(["b", "a"], taken, running_s=40) == 60 + 15
    assert remaining_s(["b", "a"], taken, running_s=4000) == 15
    assert remaining_s(["b", "a", "a"], taken, cooldown_s=5) == 130 + 10


@pytest.mark.parametrize(
    ("remaining", "text"),
    [
        (None, None),
        (0, "about 5 s left"),
        (47, "about 45 s left"),
        (3000, "about 50 min left"),
        (9000, "about 2.5 h left, until 17:30"),
        (9 * 3600, "about 9 h left, until Sun 00:00"),
        (4 * 86400, "about 4 days left, until Wed 15:00"),
        (9 * 86400, "about 9 days left, until 2026-11-30 15:00"),
    ],
)
def test_an_estimated_end_is_no_more_exact_than_it_can_be(
    remaining: float | None, text: str | None
) -> None:
    assert ending_text(remaining, datetime(2026, 11, 21, 15, tzinfo=UTC)) == text


def test_the_progress_line_moves_on_and_fits() -> None:
    view = ProgressView(done=3, total=12, elapsed_s=100, remaining_s=300, at_monotonic_s=0)
    later = view.later(100)
    assert (later.elapsed_s, later.remaining_s, later.fraction) == (200, 200, 0.5)
    assert view.later(1e6).remaining_s == 0
    now = datetime(2026, 11, 21, 15, tzinfo=UTC)
    line = progress_line(later, 80, now).plain
    assert line == f"  {'━' * 10}{'─' * 10}  3/12 workloads  03:20  about 3 min left"
    assert progress_line(later, 60, now).plain == "  3/12 workloads  03:20  about 3 min left"
    assert progress_line(ProgressView(0, 0, 1), 80, now).plain.startswith("  " + "━" * 20)
    assert "left" not in progress_line(ProgressView(0, 3, 1), 80, now).plain
